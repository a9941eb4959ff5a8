//! Entry functions of threads.

use crate::stack::Frame;

/// Names of the entry functions of threads in HotSpot and in those C libraries that have symbols for them.
const ENTRIES: [&str; 12] = [
    "thread_native_entry",
    "java_start",
    "start_thread",
    "__clone",
    "clone",
    "__clone3",
    "clone3",
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "start",
    "JavaMain",
];

/// Prefixes of the entry functions of GraalVM native images, for the main thread and others. They are called
/// only by functions of the C library, whichever one the image is linked to.
const IMAGE_ENTRIES: [&str; 3] = [
    "com.oracle.svm.core.code.IsolateEnterStub.JavaMainWrapper_run_",
    "com.oracle.svm.core.code.IsolateEnterStub.PlatformThreads_threadStartRoutine_",
    "com.oracle.svm.core.code.IsolateEnterStub.PosixPlatformThreads_pthreadStartRoutine_",
];

/// Number of outermost frames that are searched for an entry function. Beyond the entry function, a walk by
/// frame pointers follows whatever value the C library left in the frame pointer register.
const ENTRY_DEPTH: usize = 6;

/// Removes the frames beyond the outermost entry function of the thread. Returns whether the innermost entry
/// function is among the first `known` frames, which were found without a guess. (If there are several entry
/// functions, the outer ones may be guesses: musl's entry function, for which musl has no unwind table, calls
/// the entry function of libjvm.so.)
pub(crate) fn cut_beyond_entry(frames: &mut Vec<Frame>, known: usize) -> bool {
    let is_entry = |frame: &Frame| {
        ENTRIES.contains(&&*frame.name)
            || IMAGE_ENTRIES.iter().any(|entry| frame.name.starts_with(entry))
    };
    let outer = frames.len().saturating_sub(ENTRY_DEPTH);
    let Some(last) = frames[outer..].iter().rposition(is_entry) else {
        return false;
    };
    let first = frames[outer..].iter().position(is_entry).unwrap_or(last);
    frames.truncate(outer + last + 1);
    outer + first < known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Kind;

    #[test]
    fn frames_beyond_the_thread_entry_are_removed() {
        let frame = |name: &str| Frame::new(Kind::Native, name);
        let mut frames: Vec<_> =
            ["leaf", "thread_native_entry", "[unknown libc.so.6+0x1]"].map(frame).into();
        assert!(cut_beyond_entry(&mut frames, 3));
        assert_eq!(frames.len(), 2);
        let mut broken: Vec<_> = ["leaf", "[unknown]"].map(frame).into();
        assert!(!cut_beyond_entry(&mut broken, 2));
        assert_eq!(broken.len(), 2);
        assert!(!cut_beyond_entry(&mut Vec::new(), 0));
    }

    #[test]
    fn native_image_entry_completes_the_stack() {
        let frame = |name: &str| Frame::new(Kind::Java, name);
        let names = [
            "app.Main.main",
            "com.oracle.svm.core.code.IsolateEnterStub.JavaMainWrapper_run_5087f",
            "[unknown image+0x12]",
            "[unknown image+0x34]",
        ];
        let mut frames: Vec<_> = names.map(frame).into();
        assert!(cut_beyond_entry(&mut frames, 2));
        assert_eq!(frames.len(), 2);
        let mut called: Vec<_> =
            ["leaf", "com.oracle.svm.core.code.IsolateEnterStub.callback_1"].map(frame).into();
        assert!(!cut_beyond_entry(&mut called, 2));
    }

    #[test]
    fn guessed_thread_entry_does_not_complete_the_stack() {
        let frame = |name: &str| Frame::new(Kind::Native, name);
        let frames: Vec<_> =
            ["leaf", "guessed", "thread_native_entry", "start", "[unknown]"].map(frame).into();
        for (known, is_complete) in [(1, false), (2, false), (3, true), (5, true)] {
            let mut frames = frames.clone();
            assert_eq!(cut_beyond_entry(&mut frames, known), is_complete, "{known}");
            assert_eq!(frames.len(), 4);
        }
    }
}
