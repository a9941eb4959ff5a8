/*
 * The native part of StackOutside.Native: several C frames between Java frames.
 *
 * If it is compiled without frame pointers, only unwind tables lead to the callers. Each function does
 * something after its call, so that the compiler does not turn the call into a jump.
 */
#include <jni.h>
#include <stdlib.h>
#include <alloca.h>

#define FRAME __attribute__((noinline, noclone))

static volatile long sink;
static jclass class;
static jmethodID back, bottom, compare;
static __thread JNIEnv *current;

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved)
{
    JNIEnv *env;
    if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_1_8) != JNI_OK)
        return JNI_ERR;
    class = (*env)->NewGlobalRef(env, (*env)->FindClass(env, "StackOutside$Native"));
    back = (*env)->GetStaticMethodID(env, class, "back", "(I)V");
    bottom = (*env)->GetStaticMethodID(env, class, "bottom", "(I)V");
    compare = (*env)->GetStaticMethodID(env, class, "compare", "(II)I");
    return JNI_VERSION_1_8;
}

static FRAME void stackload_third(JNIEnv *env, int depth)
{
    if (depth > 0)
        (*env)->CallStaticVoidMethod(env, class, back, depth - 1);
    else
        (*env)->CallStaticVoidMethod(env, class, bottom, depth);
    sink += depth;
}

/* A frame of variable size. */
static FRAME void stackload_second(JNIEnv *env, int depth)
{
    volatile char *buffer = alloca(100 + depth * 1000);
    buffer[depth] = 1;
    stackload_third(env, depth);
    sink += buffer[depth];
}

static FRAME void stackload_first(JNIEnv *env, int depth)
{
    volatile long buffer[30] = { depth };
    stackload_second(env, depth);
    sink += buffer[depth];
}

JNIEXPORT void JNICALL Java_StackOutside_00024Native_enter(JNIEnv *env, jclass self, jint depth)
{
    stackload_first(env, depth);
    sink++;
}

static FRAME int stackload_compare(const void *a, const void *b)
{
    JNIEnv *env = current;
    int order = (*env)->CallStaticIntMethod(env, class, compare, *(const jint *)a, *(const jint *)b);
    sink += order;
    return order;
}

static FRAME void stackload_sort(int *numbers, int count)
{
    qsort(numbers, count, sizeof *numbers, stackload_compare);
    sink += numbers[0];
}

JNIEXPORT jint JNICALL Java_StackOutside_00024Native_sort(JNIEnv *env, jclass self, jint seed)
{
    jint numbers[50];
    for (int i = 0; i < 50; i++)
        numbers[i] = i * 7919 % 101 + seed;
    current = env;
    stackload_sort(numbers, 50);
    return numbers[3];
}

static FRAME long stackload_spin(int rounds)
{
    unsigned long x = rounds;
    for (int i = 0; i < rounds; i++)
        x = x * 31 + (x >> 7);
    return (long)x;
}

JNIEXPORT jlong JNICALL Java_StackOutside_00024Native_spin(JNIEnv *env, jclass self, jint rounds)
{
    jlong x = stackload_spin(rounds);
    sink += x;
    return x;
}
