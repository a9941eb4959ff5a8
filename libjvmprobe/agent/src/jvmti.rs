//! The few functions of JVMTI that the agent calls.
//!
//! The number of each function, its C signature, the bits of the capabilities
//! and the numbers of the events come from the JVM Tool Interface specification
//! ("Function Index", "Event Index", `jvmtiCapabilities`) and from the `jvmti.h`
//! of a JDK. Functions are counted from 1, so number N is slot N - 1 of the
//! table.

use core::ffi::{c_char, c_void};
use core::ptr::{NonNull, null, null_mut};

use crate::jni::{Jni, Reference, Slot, slot};
use crate::owned::{Chars, Line, Lines};

/// Event "Compiled Method Load".
pub const COMPILED_METHOD_LOAD: i32 = 68;
/// Event "Dynamic Code Generated".
pub const DYNAMIC_CODE_GENERATED: i32 = 70;
/// All events that the agent enables.
pub const EVENTS: [i32; 2] = [COMPILED_METHOD_LOAD, DYNAMIC_CODE_GENERATED];

/// Bit of `can_get_source_file_name` in `jvmtiCapabilities`.
pub const CAN_GET_SOURCE_FILE_NAME: u32 = 11;
/// Bit of `can_get_line_numbers`.
pub const CAN_GET_LINE_NUMBERS: u32 = 12;
/// Bit of `can_generate_compiled_method_load_events`.
pub const CAN_GENERATE_COMPILED_METHOD_LOAD_EVENTS: u32 = 27;

/// `JVMTI_ERROR_MUST_POSSESS_CAPABILITY`.
pub const MUST_POSSESS_CAPABILITY: i32 = 99;

/// `jmethodID`: an opaque handle of a method, never dereferenced.
pub type MethodId = *const c_void;
/// `jvmtiEnv*`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Env(pub(crate) NonNull<*const Slot>);

impl Env {
    /// Returns the function with this number.
    ///
    /// # Safety
    ///
    /// `F` must be the type of this function in `jvmti.h`.
    unsafe fn function<F: Copy>(self, number: usize) -> F {
        // SAFETY: an environment starts with the pointer to the function table,
        // which has all functions of JVMTI 1.2, and the caller guarantees `F`.
        unsafe { slot(*self.0.as_ptr(), number - 1) }
    }

    /// Function 2, Set Event Notification Mode, for all threads.
    pub fn notify(self, on: bool, event: i32) -> i32 {
        // SAFETY: the type is that of function 2, and a null thread means all threads.
        unsafe {
            let set: unsafe extern "C" fn(Self, i32, i32, Reference, ...) -> i32 = self.function(2);
            set(self, i32::from(on), event, null_mut())
        }
    }

    /// Function 46, Allocate.
    pub fn allocate(self, size: usize) -> Option<NonNull<u8>> {
        let mut memory = null_mut();
        // SAFETY: the type is that of function 46.
        let error = unsafe {
            let allocate: unsafe extern "C" fn(Self, i64, *mut *mut u8) -> i32 = self.function(46);
            allocate(self, size as i64, &mut memory)
        };
        if error == 0 { NonNull::new(memory) } else { None }
    }

    /// Function 47, Deallocate.
    pub fn deallocate(self, memory: *mut u8) {
        if memory.is_null() {
            return;
        }
        // SAFETY: the type is that of function 47, and JVMTI allocated the memory.
        unsafe {
            let deallocate: unsafe extern "C" fn(Self, *mut u8) -> i32 = self.function(47);
            deallocate(self, memory);
        }
    }

    /// Functions 65, 48 and 50: returns the signature of the class that declares
    /// a method, and the name of its source file.
    pub fn class_of(self, method: MethodId, jni: Option<Jni>) -> (Chars, Chars) {
        let mut class = null_mut();
        let (mut signature, mut file) = (null_mut(), null_mut());
        // SAFETY: the types are those of functions 65, 48 and 50; a null pointer
        // for the generic signature is allowed. If function 65 fails, `class` stays null.
        unsafe {
            let declaring: unsafe extern "C" fn(Self, MethodId, *mut Reference) -> i32 =
                self.function(65);
            if declaring(self, method, &mut class) == 0 {
                let of_class: unsafe extern "C" fn(
                    Self,
                    Reference,
                    *mut *mut c_char,
                    *mut *mut c_char,
                ) -> i32 = self.function(48);
                if of_class(self, class, &mut signature, null_mut()) != 0 {
                    signature = null_mut();
                }
                let source: unsafe extern "C" fn(Self, Reference, *mut *mut c_char) -> i32 =
                    self.function(50);
                if source(self, class, &mut file) != 0 {
                    file = null_mut();
                }
            }
        }
        if let (Some(jni), false) = (jni, class.is_null()) {
            jni.delete_local(class);
        }
        (Chars::new(self, signature), Chars::new(self, file))
    }

    /// Function 64, Get Method Name (and Signature): returns the name and the signature.
    pub fn name_of(self, method: MethodId) -> (Chars, Chars) {
        let (mut name, mut signature) = (null_mut(), null_mut());
        // SAFETY: the type is that of function 64; a null pointer for the generic
        // signature is allowed.
        let error = unsafe {
            let get: unsafe extern "C" fn(
                Self,
                MethodId,
                *mut *mut c_char,
                *mut *mut c_char,
                *mut *mut c_char,
            ) -> i32 = self.function(64);
            get(self, method, &mut name, &mut signature, null_mut())
        };
        if error != 0 {
            (name, signature) = (null_mut(), null_mut());
        }
        (Chars::new(self, name), Chars::new(self, signature))
    }

    /// Function 70, Get Line Number Table; empty if the method has none.
    pub fn lines_of(self, method: MethodId) -> Lines {
        let (mut count, mut start) = (0, null_mut());
        // SAFETY: the type is that of function 70.
        let error = unsafe {
            let get: unsafe extern "C" fn(Self, MethodId, *mut i32, *mut *mut Line) -> i32 =
                self.function(70);
            get(self, method, &mut count, &mut start)
        };
        if error != 0 {
            start = null_mut();
        }
        Lines::new(self, start, count)
    }

    /// Function 122, Set Event Callbacks. The callbacks start at event 50.
    pub fn set_callbacks(self, callbacks: &[*const c_void]) -> i32 {
        // SAFETY: the type is that of function 122, which copies the structure
        // and accepts one that is shorter than the JVM's.
        unsafe {
            let set: unsafe extern "C" fn(Self, *const Slot, i32) -> i32 = self.function(122);
            set(self, callbacks.as_ptr(), size_of_val(callbacks) as i32)
        }
    }

    /// Function 123, Generate Events.
    pub fn generate(self, event: i32) -> i32 {
        // SAFETY: the type is that of function 123.
        unsafe {
            let generate: unsafe extern "C" fn(Self, i32) -> i32 = self.function(123);
            generate(self, event)
        }
    }

    /// Function 127, Dispose Environment.
    pub fn dispose(self) {
        // SAFETY: the type is that of function 127; the caller no longer uses the environment.
        unsafe {
            let dispose: unsafe extern "C" fn(Self) -> i32 = self.function(127);
            dispose(self);
        }
    }

    /// Function 142, Add Capabilities, with a single capability.
    pub fn add_capability(self, bit: u32) -> i32 {
        // jvmtiCapabilities has 128 bits; bit 0 is the lowest bit of the first word.
        let mut capabilities = [0_u32; 4];
        if let Some(word) = capabilities.get_mut(bit as usize / 32) {
            *word = 1 << (bit % 32);
        }
        // SAFETY: the type is that of function 142.
        unsafe {
            let add: unsafe extern "C" fn(Self, *const [u32; 4]) -> i32 = self.function(142);
            add(self, &capabilities)
        }
    }

    /// Function 147, Get Environment Local Storage; null if none was set.
    pub fn storage(self) -> *const c_void {
        let mut data = null();
        // SAFETY: the type is that of function 147.
        let error = unsafe {
            let get: unsafe extern "C" fn(Self, *mut *const c_void) -> i32 = self.function(147);
            get(self, &mut data)
        };
        if error == 0 { data } else { null() }
    }

    /// Function 148, Set Environment Local Storage.
    pub fn set_storage(self, data: *const c_void) -> i32 {
        // SAFETY: the type is that of function 148.
        unsafe {
            let set: unsafe extern "C" fn(Self, *const c_void) -> i32 = self.function(148);
            set(self, data)
        }
    }
}
