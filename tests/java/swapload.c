/* SwapLoad's native library. It is compiled twice; SPIN is the name of its function, different each time. */
#include <jni.h>

__attribute__((noinline)) long SPIN(long count)
{
	volatile long sum = 0;

	while (count-- > 0)
		sum += count;
	return sum;
}

JNIEXPORT jlong JNICALL Java_SwapNative_rounds(JNIEnv *env, jclass class, jlong count)
{
	(void)env;
	(void)class;
	return SPIN(count) + 1;
}
