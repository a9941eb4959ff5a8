//! The JVM's function tables, and the two functions of JNI that the agent calls.
//!
//! A `JavaVM*`, a `JNIEnv*` and a `jvmtiEnv*` all point to a pointer to a table
//! of functions. The slots and types of `GetEnv` and `DeleteLocalRef` come from
//! the JNI specification ("The Invocation API", "JNI Functions") and from
//! `jni.h`. Slots are counted from 0, and reserved slots count too.

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};

use crate::jvmti::Env;

const JVMTI_VERSION_1_2: i32 = 0x3001_0200;
const JNI_VERSION_1_6: i32 = 0x0001_0006;

/// `jclass`, `jobject`: a JNI reference.
pub type Reference = *mut c_void;
/// One entry of a function table.
pub type Slot = *const c_void;

/// Returns one function of a function table of the JVM.
///
/// # Safety
///
/// `table` must be live and have slot `index`, and `F` must be the type of the
/// function in that slot.
pub unsafe fn slot<F: Copy>(table: *const Slot, index: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<Slot>()) };
    // SAFETY: the caller guarantees the slot and its type; the sizes are equal.
    unsafe { table.add(index).cast::<F>().read() }
}

/// `JavaVM*`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct JavaVm(NonNull<*const Slot>);

impl JavaVm {
    fn environment(self, version: i32) -> Option<NonNull<*const Slot>> {
        let mut found = null_mut();
        // SAFETY: slot 6 of the invocation interface is GetEnv.
        let result = unsafe {
            let get: unsafe extern "C" fn(Self, *mut *mut c_void, i32) -> i32 =
                slot(*self.0.as_ptr(), 6);
            get(self, &mut found, version)
        };
        if result == 0 { NonNull::new(found.cast()) } else { None }
    }

    /// Creates a JVMTI environment.
    pub fn jvmti(self) -> Option<Env> {
        self.environment(JVMTI_VERSION_1_2).map(Env)
    }

    /// Returns the JNI environment of this thread, if the thread is attached to the JVM.
    pub fn jni(self) -> Option<Jni> {
        self.environment(JNI_VERSION_1_6).map(Jni)
    }
}

/// `JNIEnv*` of the current thread.
#[derive(Clone, Copy)]
pub struct Jni(NonNull<*const Slot>);

impl Jni {
    /// Calls slot 23, DeleteLocalRef.
    pub fn delete_local(self, reference: Reference) {
        // SAFETY: slot 23 has this type, and the reference was created in this thread.
        unsafe {
            let delete: unsafe extern "C" fn(Self, Reference) = slot(*self.0.as_ptr(), 23);
            delete(self, reference);
        }
    }
}
