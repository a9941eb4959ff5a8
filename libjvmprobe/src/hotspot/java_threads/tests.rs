//! Tests with a fake JVM.

use proptest::prelude::*;

use super::{
    owners::ANONYMOUS,
    reader::{FIRST_WITH_HANDLES, FIRST_WITH_OWNER_NUMBERS, SYNCHRONIZER},
    *,
};
use crate::hotspot::testing::{CHARACTERS, Image, java_class, java_threads, own_memory};

/// Adds a class with fields that are not static: name, signature, offset.
fn class(image: &mut Image, name: &str, parent: Addr, fields: &[(&str, &str, u16)]) -> Addr {
    let fields: Vec<_> =
        fields.iter().map(|&(name, signature, offset)| (name, signature, offset, 0)).collect();
    java_class(image, name, parent, &fields)
}

/// A JVM with three threads, without compressed pointers and without compressed class pointers.
struct Jvm {
    image: Image,
    /// Words of a JavaThread: `_osthread`, `_threadObj`, state, pending monitor, waiting monitor, end and size of
    /// the stack, top and objects of the lock stack, owner ID.
    threads: [Addr; 3],
    /// Words of a `java.lang.Thread`: mark, class, name, number, JavaThread, blocker, daemon, priority, status.
    objects: [Addr; 3],
    /// Words of a monitor: object, owner, locker.
    monitor: Addr,
    /// The object of the monitor, of the class `a/Lock`.
    lock: Addr,
    /// A synchronizer. Its third word is its owner.
    synchronizer: Addr,
    /// An `int` array before the synchronizer. The low half of its third word is its length.
    array: Addr,
}

/// Offsets of the lock stack and of the TLAB in a JavaThread.
const LOCKS: u64 = 56;
const TLAB: u64 = 88;

impl Jvm {
    fn new(major: u32) -> Self {
        let has_handles = major >= FIRST_WITH_HANDLES;
        let mut image = Image::new();
        let none = Addr(0);
        // The complete image is the heap. Words of a CollectedHeap: number of collections, first address, size in words.
        let start = image.put(&[]);
        let heap = image.put(&[0, start.0, 4096]);
        let heap = image.put(&[heap.0]);
        image.static_field("Universe", "_collectedHeap", heap);
        let thread_class = class(
            &mut image,
            "java/lang/Thread",
            none,
            &[
                ("name", "Ljava/lang/String;", 16),
                ("tid", "J", 24),
                ("eetop", "J", 32),
                ("parkBlocker", "Ljava/lang/Object;", 40),
                ("daemon", "Z", 48),
                ("priority", "I", 56),
                ("threadStatus", "I", 64),
            ],
        );
        let own_class = class(&mut image, "a/Worker", thread_class, &[("name", "J", 72)]);
        let string = class(&mut image, "java/lang/String", none, &[("value", "[C", 16)]);
        let characters = class(&mut image, "[C", none, &[]);
        image.overwrite(Addr(characters.0 + 16), CHARACTERS);
        let lock_class = class(&mut image, "a/Lock", none, &[]);
        let owner = ("exclusiveOwnerThread", "Ljava/lang/Thread;", 16);
        let synchronizer = class(&mut image, SYNCHRONIZER, none, &[owner]);
        let fair = class(&mut image, "a/Lock$Fair", synchronizer, &[]);
        let ints = class(&mut image, "[I", none, &[]);
        let filler = image.put(&[1, ints.0, 0, 0]);
        let synchronizer = image.put(&[1, fair.0, 0]);
        let lock = image.put(&[1, lock_class.0]);
        let handle = |image: &mut Image, object: Addr| {
            if has_handles { image.put(&[object.0]) } else { object }
        };
        let lock_at = handle(&mut image, lock);
        let monitor = image.put(&[lock_at.0, 0, 0]);
        let mut objects = [none; 3];
        let threads = [0, 1, 2].map(|index| {
            let text = (0x41 + index) | 0x42 << 16 | 0x43 << 32;
            let array = image.put(&[1, characters.0, 3, text]);
            let name = image.put(&[1, string.0, array.0]);
            let state = [index % 2, 5 + index, 5];
            let [daemon, priority, status] = state;
            let words = [1, own_class.0, name.0, 10 + index, 0, 0, daemon, priority, status];
            let object = image.put(&words);
            objects[index as usize] = object;
            let object_at = handle(&mut image, object);
            let os_thread = image.put(&[100 + index]);
            let stack = 0x7000_0000 + index * 0x10_0000;
            let words = [os_thread.0, object_at.0, 4, 0, 0, stack, 0x1_0000];
            let thread = image.put(&words);
            image.put(&[LOCKS + 8, 0, 0, 10 + index]);
            // The TLAB.
            image.put(&[0, 0, 0]);
            image.overwrite(Addr(object.0 + 32), thread.0);
            thread
        });
        java_threads(&mut image, &threads);
        for (class, field, offset) in [
            ("JavaThread", "_lock_stack", LOCKS),
            ("LockStack", "_top", 0),
            ("LockStack", "_base[0]", 8),
            ("CollectedHeap", "_total_collections", 0),
            ("CollectedHeap", "_reserved", 8),
            ("MemRegion", "_start", 0),
            ("MemRegion", "_word_size", 8),
            ("Thread", "_tlab", TLAB),
            ("ThreadLocalAllocBuffer", "_start", 0),
            ("ThreadLocalAllocBuffer", "_top", 8),
            ("ThreadLocalAllocBuffer", "_end", 16),
            ("ObjectMonitor", "_stack_locker", 16),
        ] {
            image.field(class, field, offset);
        }
        if major >= FIRST_WITH_OWNER_NUMBERS {
            image.field("JavaThread", "_monitor_owner_id", 80);
        }
        image.finish();
        Self { image, threads, objects, monitor, lock, synchronizer, array: filler }
    }

    fn set(&mut self, object: Addr, offset: u64, value: u64) {
        self.image.overwrite(Addr(object.0 + offset), value);
    }

    /// Makes the first thread wait for the monitor.
    fn block(&mut self, owner: u64) {
        let (thread, monitor) = (self.threads[0], self.monitor);
        self.set(thread, 24, monitor.0);
        self.set(monitor, 8, owner);
    }

    fn read(&self, major: u32) -> Vec<JavaThread> {
        read(&own_memory(), &self.image.read().unwrap().of_jdk(major)).unwrap().threads
    }

    /// Returns the owner of the object that the first thread waits for.
    fn owner(&self, major: u32) -> Owner {
        self.read(major).remove(0).blocked_on.unwrap().owner
    }
}

#[test]
fn threads_are_read_with_names_and_states() {
    for major in [8, 17, 25] {
        let jvm = Jvm::new(major);
        let threads = jvm.read(major);
        assert_eq!(threads.len(), 3, "{major}");
        let expected = JavaThread {
            address: jvm.threads[1],
            tid: Some(101),
            object: Some(jvm.objects[1]),
            name: Some("BBC".into()),
            number: Some(11),
            is_daemon: Some(true),
            priority: Some(6),
            status: Some(ThreadStatus::Runnable),
            blocked_on: None,
            mounted: None,
            is_moving: false,
        };
        assert_eq!(threads[1], expected, "{major}");
    }
}

#[test]
fn wanted_names_are_read_without_escapes() {
    for major in [8, 17, 25] {
        let mut jvm = Jvm::new(major);
        let memory = own_memory();
        let string = memory.pointer(Addr(jvm.objects[0].0 + 16)).unwrap();
        let array = memory.pointer(Addr(string.0 + 16)).unwrap();
        jvm.set(array, 24, 0x41 | 0x1b << 16 | 0x416 << 32);
        let mut reader = Reader::new(&memory, &jvm.image.read().unwrap().of_jdk(major)).unwrap();
        let names = reader.names(Instant::now() + MAX_TIME, |name| name != "CBC").unwrap();
        let expected = [(100, "A\u{1b}\u{416}".into()), (101, "BBC".into())];
        assert_eq!(names, expected.into(), "{major}");
        assert!(reader.names(Instant::now(), |_| true).unwrap().is_empty());
    }
}

#[test]
fn monitor_owner_is_found_by_address_stack_or_number() {
    for major in [8, 17] {
        let mut jvm = Jvm::new(major);
        let second = jvm.threads[1];
        jvm.block(second.0);
        let blocked = jvm.read(major).remove(0).blocked_on.unwrap();
        assert_eq!((blocked.kind, blocked.object), (BlockKind::Enter, jvm.lock));
        assert_eq!(&*blocked.class, "a.Lock");
        assert_eq!(blocked.owner, Owner::Thread(second));
        // An address on the stack of the second thread, and addresses below and above that stack.
        jvm.block(0x7010_0000 - 8);
        assert_eq!(jvm.owner(major), Owner::Thread(second));
        for address in [0x7010_0000 - 0x1_0001, 0x7010_0000, u64::MAX] {
            jvm.block(address);
            assert_eq!(jvm.owner(major), Owner::Unknown);
        }
        jvm.block(0);
        assert_eq!(jvm.owner(major), Owner::None);
        // The owner is the waiting thread itself.
        jvm.block(jvm.threads[0].0);
        assert_eq!(jvm.owner(major), Owner::Unknown);
    }
    let mut jvm = Jvm::new(25);
    jvm.block(12);
    assert_eq!(jvm.owner(25), Owner::Thread(jvm.threads[2]));
    // No platform thread has this number.
    jvm.block(77);
    assert_eq!(jvm.owner(25), Owner::VirtualThread { number: 77, name: None });
    jvm.block(2);
    assert_eq!(jvm.owner(25), Owner::Unknown);
    // Two threads have the same number.
    let third = jvm.objects[2];
    jvm.set(third, 24, 11);
    jvm.block(11);
    assert_eq!(jvm.owner(25), Owner::Unknown);
}

#[test]
fn anonymous_owner_is_found_by_lock_stack_or_locker() {
    for major in [21, 25] {
        let mut jvm = Jvm::new(major);
        jvm.block(ANONYMOUS);
        assert_eq!(jvm.owner(major), Owner::Unknown);
        let (third, lock) = (jvm.threads[2], jvm.lock);
        jvm.set(third, LOCKS + 8, lock.0);
        // The object is above the top of the lock stack.
        assert_eq!(jvm.owner(major), Owner::Unknown);
        jvm.set(third, LOCKS, LOCKS + 16);
        assert_eq!(jvm.owner(major), Owner::Thread(third));
        if major == 25 {
            // A virtual thread is mounted on the third thread.
            jvm.set(third, 80, 99);
            assert_eq!(jvm.owner(major), Owner::VirtualThread { number: 99, name: None });
        }
        // Two threads have the same object in their lock stacks, so the owner is not certain.
        let second = jvm.threads[1];
        jvm.set(second, LOCKS + 8, lock.0);
        jvm.set(second, LOCKS, LOCKS + 16);
        assert_eq!(jvm.owner(major), Owner::Unknown);
        jvm.set(jvm.monitor, 16, 0x7010_0000 - 8);
        assert_eq!(jvm.owner(major), Owner::Thread(second));
    }
}

#[test]
fn parked_thread_has_the_owner_of_its_synchronizer() {
    let mut jvm = Jvm::new(17);
    let (first, second, synchronizer) = (jvm.objects[0], jvm.objects[1], jvm.synchronizer);
    jvm.set(first, 40, synchronizer.0);
    assert_eq!(jvm.read(17)[0].blocked_on, None, "it is not parked");
    jvm.set(first, 64, 0x291);
    let blocked = jvm.read(17).remove(0).blocked_on.unwrap();
    let class = "a.Lock$Fair".into();
    let (kind, owner) = (BlockKind::Park, Owner::None);
    assert_eq!(blocked, BlockedOn { kind, object: synchronizer, class, owner });
    jvm.set(synchronizer, 16, second.0);
    assert_eq!(jvm.owner(17), Owner::Thread(jvm.threads[1]));
    // The object of a thread that has exited.
    jvm.set(second, 32, 0);
    assert_eq!(jvm.owner(17), Owner::Unknown);
    // An object that is not a thread.
    jvm.set(synchronizer, 16, jvm.lock.0);
    let thread = jvm.read(17).remove(0);
    assert!(thread.is_moving && thread.blocked_on.is_none(), "{thread:?}");
    assert_eq!(thread.tid, Some(100));
}

#[test]
fn owned_synchronizer_is_found_in_the_heap() {
    for major in [8, 17, 25] {
        let mut jvm = Jvm::new(major);
        let (synchronizer, thread, object) = (jvm.synchronizer, jvm.threads[1], jvm.objects[1]);
        let owned = |jvm: &Jvm| {
            let layout = jvm.image.read().unwrap().of_jdk(major);
            let owned = owned(&own_memory(), &layout).unwrap();
            assert_eq!(owned.incomplete, None, "{major}");
            owned.found
        };
        assert_eq!(owned(&jvm), [], "{major}: no owner");
        jvm.set(synchronizer, 16, object.0);
        let class = "a.Lock$Fair".into();
        let expected = [OwnedSynchronizer { owner: thread, object: synchronizer, class }];
        assert_eq!(owned(&jvm), expected, "{major}");
        // Headers: of a moved object, of an object whose lock is on a stack, another word, and the second word of an array.
        for header in [0x7f00_0000_0003, 0x7010_0000 - 16, 1 << 63 | 1] {
            jvm.set(synchronizer, 0, header);
            assert_eq!(owned(&jvm), [], "{major}: {header:#x}");
        }
        jvm.set(synchronizer, 0, 0x1234_5601);
        assert_eq!(owned(&jvm), expected, "{major}: with a hash");
        // The monitor of another object, and its own monitor.
        jvm.set(synchronizer, 0, jvm.monitor.0 | 0b10);
        assert_eq!(owned(&jvm), [], "{major}: monitor of another object");
        let field = if major == 8 { jvm.monitor } else { jvm.image.put(&[synchronizer.0]) };
        jvm.set(jvm.monitor, 0, if major == 8 { synchronizer.0 } else { field.0 });
        assert_eq!(owned(&jvm), expected, "{major}: own monitor");
        // The unused part of a TLAB begins in the synchronizer, or after it.
        for (top, expected) in [(16, &[][..]), (24, &expected)] {
            for (offset, value) in [(8, synchronizer.0 + top), (16, synchronizer.0 + 256)] {
                jvm.set(jvm.threads[2], TLAB + offset, value);
            }
            assert_eq!(owned(&jvm), expected, "{major}: TLAB");
        }
    }
}

#[test]
fn synchronizer_within_an_array_that_fills_memory_is_left_out() {
    let mut jvm = Jvm::new(17);
    let (synchronizer, array) = (jvm.synchronizer, jvm.array);
    let layout = jvm.image.read().unwrap().of_jdk(17);
    let mut reader = Reader::new(&own_memory(), &layout).unwrap();
    let owned = OwnedSynchronizer {
        owner: jvm.threads[0],
        object: synchronizer,
        class: "a.Lock$Fair".into(),
    };
    let range = [Addr(array.0 - 64)..Addr(synchronizer.0 + 64)];
    let mut rest = |unused: &[std::ops::Range<Addr>]| {
        let until = Instant::now() + MAX_TIME;
        let mut found = vec![owned.clone()];
        unused::remove_in_fillers(&mut reader, &range, unused, until, &mut found).unwrap();
        found.len()
    };
    // The array ends before the synchronizer.
    jvm.set(array, 16, 2);
    assert_eq!(rest(&[]), 1);
    jvm.set(array, 16, 4);
    assert_eq!(rest(&[]), 0);
    // The array is itself in unused memory, or is locked, or would end after the range.
    assert_eq!(rest(&[array..Addr(array.0 + 8)]), 1);
    jvm.set(array, 0, 5);
    assert_eq!(rest(&[]), 1);
    jvm.set(array, 0, 1);
    jvm.set(array, 16, 1000);
    assert_eq!(rest(&[]), 1);
}

#[test]
fn waiting_thread_has_the_object_that_it_waits_for() {
    let mut jvm = Jvm::new(17);
    let (first, monitor) = (jvm.threads[0], jvm.monitor);
    jvm.set(first, 32, monitor.0);
    let blocked = jvm.read(17).remove(0).blocked_on.unwrap();
    assert_eq!((blocked.kind, blocked.owner), (BlockKind::Wait, Owner::None));
    // A raw monitor, which a JVMTI agent has created, has no object.
    jvm.set(monitor, 0, 0);
    let thread = jvm.read(17).remove(0);
    assert_eq!((thread.blocked_on, thread.is_moving), (None, false));
}

#[test]
fn object_of_another_thread_is_not_used() {
    let mut jvm = Jvm::new(17);
    let (first, second) = (jvm.objects[0], jvm.threads[1]);
    jvm.set(first, 32, second.0);
    let thread = jvm.read(17).remove(0);
    assert_eq!((thread.name, thread.object, thread.is_moving), (None, None, true));
    assert_eq!(thread.tid, Some(100));
}

/// Adds an interpreted frame whose list of monitors contains `objects`, the latest first. Returns its frame pointer.
fn interpreted(image: &mut Image, major: u32, objects: &[Addr]) -> Addr {
    let fixed = if major == 8 { 8 } else { 9 };
    let monitors: Vec<_> = objects.iter().flat_map(|object| [0, object.0]).collect();
    let list = image.put(&monitors);
    let count = monitors.len() as u64;
    let end = image.put(&vec![list.0; fixed]);
    assert_eq!(end.0, list.0 + 8 * count);
    if major >= 22 {
        // The distance from the frame pointer in words.
        image.overwrite(end, (count + fixed as u64).wrapping_neg());
    }
    Addr(end.0 + 8 * fixed as u64)
}

#[test]
fn only_monitors_that_the_thread_holds_are_listed() {
    for major in [8, 17, 21, 25] {
        let mut jvm = Jvm::new(major);
        let (first, second, lock) = (jvm.threads[0], jvm.threads[1], jvm.lock);
        let fp = interpreted(&mut jvm.image, major, &[Addr(0), lock]);
        let held = |jvm: &Jvm| {
            let layout = jvm.image.read().unwrap().of_jdk(major);
            let frames = vec![FrameState::Other, FrameState::Interpreted(fp)];
            let stacks = [(first, frames.clone()), (second, frames)];
            held(&own_memory(), &layout, &stacks).unwrap()
        };
        assert_eq!(held(&jvm), [vec![], vec![]], "{major}: not locked");
        let class = "a.Lock".into();
        let expected = HeldMonitor { frame: 1, depth: 0, object: lock, class };
        // A BasicLock on the stack of the second thread.
        jvm.set(lock, 0, 0x7010_0000 - 16);
        assert_eq!(held(&jvm), [vec![], vec![expected.clone()]], "{major}: stack lock");
        // Inflated.
        jvm.set(lock, 0, jvm.monitor.0 | 0b10);
        jvm.set(jvm.monitor, 8, if major == 25 { 10 } else { first.0 });
        assert_eq!(held(&jvm), [vec![expected.clone()], vec![]], "{major}: inflated");
        jvm.set(jvm.monitor, 8, 0);
        assert_eq!(held(&jvm), [vec![], vec![]], "{major}: a monitor without owner");
        if major >= 21 {
            jvm.set(lock, 0, 0);
            jvm.set(second, LOCKS + 8, lock.0);
            jvm.set(second, LOCKS, LOCKS + 16);
            assert_eq!(held(&jvm), [vec![], vec![expected.clone()]], "{major}: lock stack");
            jvm.set(lock, 0, jvm.monitor.0 | 0b10);
            jvm.set(jvm.monitor, 8, ANONYMOUS);
            assert_eq!(held(&jvm), [vec![], vec![expected.clone()]], "{major}: anonymous");
        } else {
            // Biased towards the first thread, whose address must be a multiple of 1,024 for this.
            jvm.set(lock, 0, first.0 & !0x3ff | 0b101);
            let is_aligned = first.0.is_multiple_of(1024);
            assert_eq!(held(&jvm)[0].len(), usize::from(is_aligned), "{major}: biased");
        }
    }
}

#[test]
fn number_of_monitors_of_a_thread_is_limited() {
    let mut jvm = Jvm::new(17);
    let (thread, lock) = (jvm.threads[1], jvm.lock);
    let fp = interpreted(&mut jvm.image, 17, &[lock; 100]);
    // A BasicLock on the stack of the thread.
    jvm.set(lock, 0, 0x7010_0000 - 16);
    let layout = jvm.image.read().unwrap().of_jdk(17);
    let held = |frames: usize| {
        let stacks = [(thread, vec![FrameState::Interpreted(fp); frames])];
        held(&own_memory(), &layout, &stacks).unwrap()[0].len()
    };
    assert_eq!([held(3), held(1000)], [300, 4100]);
}

#[test]
fn class_at_a_reused_address_is_read_again() {
    let mut jvm = Jvm::new(17);
    let layout = jvm.image.read().unwrap().of_jdk(17);
    let mut reader = awaited_reader(&own_memory(), &layout).unwrap();
    let class_of = |object: Addr| own_memory().pointer(Addr(object.0 + 8)).unwrap();
    let (fair, lock) = (class_of(jvm.synchronizer), class_of(jvm.lock));
    let mut class = |klass| reader.class(klass).map(|class| (class.name, class.is_synchronizer));
    assert_eq!(class(fair), Some(("a.Lock$Fair".into(), true)));
    // The memory of the class now holds another class.
    for word in 0..8 {
        let value = own_memory().u64(Addr(lock.0 + 8 * word)).unwrap();
        jvm.set(fair, 8 * word, value);
    }
    reader.forget_classes();
    assert_eq!(reader.class(fair).map(|class| class.is_synchronizer), Some(false));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_threads_never_panic(
        damage in prop::collection::vec((any::<usize>(), any::<u64>()), 0..4),
        small in prop::collection::vec((any::<usize>(), 0..4096_u64), 0..4),
        major in prop::sample::select(vec![8, 17, 25]),
    ) {
        let mut jvm = Jvm::new(major);
        jvm.block(ANONYMOUS);
        let lock = jvm.lock;
        let fp = interpreted(&mut jvm.image, major, &[lock, lock]);
        let layout = jvm.image.read().unwrap().of_jdk(major);
        for (index, value) in damage.into_iter().chain(small) {
            jvm.image.damage(index, value);
        }
        let _ = read(&own_memory(), &layout);
        let frames = vec![FrameState::Interpreted(fp), FrameState::Interpreted(lock)];
        let _ = held(&own_memory(), &layout, &[(jvm.threads[0], frames)]);
        let _ = owned(&own_memory(), &layout);
    }
}

#[test]
fn statuses_are_decoded() {
    for (raw, text) in [
        (0, "NEW"),
        (0x5, "RUNNABLE"),
        (0xe1, "TIMED_WAITING (sleeping)"),
        (0x191, "WAITING (on object monitor)"),
        (0x1a1, "TIMED_WAITING (on object monitor)"),
        (0x291, "WAITING (parking)"),
        (0x2a1, "TIMED_WAITING (parking)"),
        (0x401, "BLOCKED (on object monitor)"),
        (0x2, "TERMINATED"),
        (0x7, "UNKNOWN"),
    ] {
        assert_eq!(ThreadStatus::of(raw).text(), text);
    }
    assert_eq!(ThreadStatus::of(7), ThreadStatus::Unknown(7));
}
