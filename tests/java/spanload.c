/*
 * SpanLoad's native library: a thread-local pointer by which threads publish their trace contexts.
 *
 * Compiled with -DVARIABLE=NAME, the name of the pointer, and -DCONVENTION=NUMBER. With -DPADDING=BYTES, the block of
 * thread-local variables is so large that the dynamic linker cannot place it near the thread pointer.
 */
#include <jni.h>

__attribute__((visibility("default"))) _Thread_local void *VARIABLE;
#ifdef PADDING
__attribute__((visibility("default"))) _Thread_local char padding[PADDING];
#endif

JNIEXPORT jint JNICALL Java_SpanLoad_convention(JNIEnv *env, jclass class)
{
	(void)env;
	(void)class;
	return CONVENTION;
}

JNIEXPORT jlong JNICALL Java_SpanLoad_address(JNIEnv *env, jclass class, jobject buffer)
{
	(void)class;
	return (jlong)(*env)->GetDirectBufferAddress(env, buffer);
}

JNIEXPORT void JNICALL Java_SpanLoad_publish(JNIEnv *env, jclass class, jlong address)
{
	(void)env;
	(void)class;
	VARIABLE = (void *)address;
}
