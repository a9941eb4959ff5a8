/* SwapLoad's native part, twice: SPIN is what its function is called. */
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
