//! Tests with a fake JVM.

use proptest::prelude::*;

use super::{chunks::Frames, *};
use crate::{
    Addr,
    hotspot::{
        java_threads::{BlockKind, Owner},
        pages::Pages,
        testing::{CHARACTERS, Image, java_class, java_threads, own_memory},
    },
};

/// Layout helper of an array of references of eight bytes, with a header of 24 bytes.
const REFERENCES: u64 = 0x8018_0c03;
const NODE: &str = "java/util/concurrent/ConcurrentHashMap$Node";
const SET: &str = "Ljava/util/Set;";
/// Access flag of a static field (`JVM_ACC_STATIC`).
const STATIC: u16 = 8;

/// Adds a class to the list that begins with `last`.
fn class(
    image: &mut Image,
    last: &mut Addr,
    (name, parent): (&str, Addr),
    fields: &[(&str, &str, u16, u16)],
) -> Addr {
    let class = java_class(image, name, parent, fields);
    image.overwrite(Addr(class.0 + 48), last.0);
    *last = class;
    class
}

/// A JVM with two virtual threads without a container: the first one is parked with a compiled and an interpreted frame,
/// the second one is new.
struct Jvm {
    image: Image,
    /// Words of a `VirtualThread`: mark, class, name, number, JavaThread, blocker, holder, state, continuation, carrier.
    threads: [Addr; 2],
    /// Words of a chunk: mark, class, sp, bottom, parent, then the stack.
    chunk: Addr,
    /// The table of the set of threads. It has two entries, of which the second one is null.
    table: Addr,
    /// A node: mark, class, key, next.
    node: Addr,
    /// The compiled code and the interpreter.
    code: Addr,
    interpreter: Addr,
    method: Addr,
}

/// Size of a chunk without its stack.
const CHUNK: u64 = 40;
/// Size of the frame of the compiled code, in words.
const FRAME: u64 = 4;

impl Jvm {
    fn new() -> Self {
        let mut image = Image::new();
        let (none, mut last) = (Addr(0), Addr(0));
        let i = &mut image;
        let text = "Ljava/lang/String;";
        let thread_class = class(
            i,
            &mut last,
            ("java/lang/Thread", none),
            &[
                ("name", text, 16, 0),
                ("tid", "J", 24, 0),
                ("eetop", "J", 32, 0),
                ("parkBlocker", "Ljava/lang/Object;", 40, 0),
                ("holder", "Ljava/lang/Thread$FieldHolder;", 48, 0),
            ],
        );
        let base = class(i, &mut last, ("java/lang/BaseVirtualThread", thread_class), &[]);
        let virtual_class = class(
            i,
            &mut last,
            ("java/lang/VirtualThread", base),
            &[
                ("state", "I", 56, 0),
                ("cont", "Ljdk/internal/vm/Continuation;", 64, 0),
                ("carrierThread", "Ljava/lang/Thread;", 72, 0),
                ("NEW", "I", 16, STATIC),
                ("PARKED", "I", 20, STATIC),
            ],
        );
        let tail = ("tail", "Ljdk/internal/vm/StackChunk;", 16, 0);
        let continuation = class(i, &mut last, ("jdk/internal/vm/Continuation", none), &[tail]);
        let chunk_class = class(
            i,
            &mut last,
            ("jdk/internal/vm/StackChunk", none),
            &[
                ("sp", "I", 16, 0),
                ("bottom", "I", 24, 0),
                ("parent", "Ljdk/internal/vm/StackChunk;", 32, 0),
            ],
        );
        i.overwrite(Addr(chunk_class.0 + 16), CHUNK);
        let tracking = class(
            i,
            &mut last,
            ("jdk/internal/vm/ThreadContainers$RootContainer$TrackingRootContainer", none),
            &[("VTHREADS", SET, 16, STATIC)],
        );
        let map_name = "Ljava/util/concurrent/ConcurrentHashMap;";
        let view = class(
            i,
            &mut last,
            ("java/util/concurrent/ConcurrentHashMap$CollectionView", none),
            &[("map", map_name, 16, 0)],
        );
        let table = ("table", "[Ljava/util/concurrent/ConcurrentHashMap$Node;", 16, 0);
        let map = class(i, &mut last, ("java/util/concurrent/ConcurrentHashMap", none), &[table]);
        let next = ("next", "Ljava/util/concurrent/ConcurrentHashMap$Node;", 24, 0);
        let key = ("key", "Ljava/lang/Object;", 16, 0);
        let node_class = class(i, &mut last, (NODE, none), &[key, next]);
        let string = class(i, &mut last, ("java/lang/String", none), &[("value", "[C", 16, 0)]);
        let characters = class(i, &mut last, ("[C", none), &[]);
        i.overwrite(Addr(characters.0 + 16), CHARACTERS);
        let nodes = class(i, &mut last, ("[Node", none), &[]);
        i.overwrite(Addr(nodes.0 + 16), REFERENCES);
        let lock = class(i, &mut last, ("a/Lock", none), &[]);

        // The code cache: a block with a blob whose code begins after 80 bytes, then the interpreter.
        let name = i.text("nmethod");
        let block = i.put(&[16, 1]);
        let code = Addr(block.0 + 96);
        i.put(&[name.0, FRAME, 0, 7, 0, 0, 0, 0, 0, 0]);
        i.put(&[0; 20]);
        let segmap = i.put(&[0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let heap = i.put(&[block.0, block.0 + 256, segmap.0, 4]);
        let elements = i.put(&[heap.0]);
        let array = i.put(&[1 | 1 << 32, elements.0]);
        let heaps = i.put(&[array.0]);
        i.static_field("CodeCache", "_heaps", heaps);
        let interpreter = i.put(&[0; 4]);
        let queue = i.put(&[interpreter.0, 32]);
        let queue = i.put(&[queue.0]);
        i.static_field("AbstractInterpreter", "_code", queue);
        // A ConstMethod with 9 bytecodes, which begin after 16 bytes.
        let const_method = i.put(&[9, 0, 0, 0]);
        let method = i.put(&[const_method.0]);

        let blocker = i.put(&[1, lock.0]);
        // The stack, from the word 0 on: two unused words, the frame pointer and the address of the innermost frame.
        let mut stack = vec![0; 4];
        stack[2] = 77;
        stack[3] = code.0 + 8;
        // The compiled frame. Its last two words belong to its caller: the relative frame pointer, and the
        // address at which the caller continues.
        stack.extend([0; FRAME as usize]);
        stack[6] = 10;
        stack[7] = interpreter.0 + 8;
        // The interpreted frame. Its frame pointer refers to the word 16, and its local variables extend to
        // the bottom.
        stack.extend([0; 12]);
        stack[16 - 8] = const_method.0 + 16 + 5;
        stack[16 - 7] = 2;
        stack[16 - 3] = method.0;
        stack[16 - 1] = 3;
        let bottom = 19;
        let chunk = i.put(&[1, chunk_class.0, 4, bottom, 0]);
        i.put(&stack);
        let continuation = i.put(&[1, continuation.0, chunk.0]);
        let text = i.put(&[1, characters.0, 3, 0x41 | 0x42 << 16 | 0x43 << 32]);
        let name = i.put(&[1, string.0, text.0]);
        let mut threads = [0; 2].map(|_| none);
        for (index, thread) in threads.iter_mut().enumerate() {
            let (number, state) = (21 + index as u64, [4, 0][index]);
            let cont = [continuation.0, 0][index];
            let words = [1, virtual_class.0, name.0, number, 0, blocker.0, 0, state, cont, 0];
            *thread = i.put(&words);
        }
        let second = i.put(&[1, node_class.0, threads[1].0, 0]);
        let node = i.put(&[1, node_class.0, threads[0].0, second.0]);
        let table = i.put(&[1, nodes.0, 2, node.0, 0]);
        let map = i.put(&[1, map.0, table.0]);
        let view = i.put(&[1, view.0, map.0]);
        let mirror = |i: &mut Image, class: Addr, words: [u64; 2]| {
            let mirror = i.put(&[1, 0, words[0], words[1]]);
            let handle = i.put(&[mirror.0]);
            i.overwrite(Addr(class.0 + 56), handle.0);
        };
        mirror(i, virtual_class, [4 << 32, 0]);
        mirror(i, tracking, [view.0, 0]);
        let boot = i.put(&[0, last.0]);
        let other = i.put(&[boot.0, 0]);
        let loaders = i.put(&[other.0]);
        i.static_field("ClassLoaderDataGraph", "_head", loaders);
        java_threads(i, &[]);
        for (class, field, offset) in FIELDS {
            i.field(class, field, offset);
        }
        for (class, size) in [
            ("HeapBlock", 16),
            ("HeapBlock::Header", 16),
            ("GrowableArrayBase", 8),
            ("ConstMethod", 16),
        ] {
            i.class(class, size);
        }
        image.finish();
        Self { image, threads, chunk, table, node, code, interpreter, method }
    }

    fn set(&mut self, object: Addr, offset: u64, value: u64) {
        self.image.overwrite(Addr(object.0 + offset), value);
    }

    fn read(&self) -> Result<VirtualThreads> {
        read(
            &own_memory(),
            &self.image.read().unwrap().of_jdk(21),
            &BootClasses::default(),
            MAX_VIRTUAL_THREADS,
        )
    }
}

/// Offsets of the fake JVM's fields.
const FIELDS: [(&str, &str, u64); 23] = [
    ("ClassLoaderData", "_next", 0),
    ("ClassLoaderData", "_klasses", 8),
    ("Klass", "_next_link", 48),
    ("Klass", "_java_mirror", 56),
    ("CodeHeap", "_memory", 0),
    ("CodeHeap", "_segmap", 16),
    ("CodeHeap", "_log2_segment_size", 24),
    ("VirtualSpace", "_low", 0),
    ("VirtualSpace", "_high", 8),
    ("VirtualSpace", "_low_boundary", 0),
    ("VirtualSpace", "_high_boundary", 8),
    ("GrowableArrayBase", "_len", 0),
    ("HeapBlock::Header", "_length", 0),
    ("HeapBlock::Header", "_used", 8),
    ("CodeBlob", "_name", 0),
    ("CodeBlob", "_frame_size", 8),
    ("nmethod", "_orig_pc_offset", 16),
    ("nmethod", "_compile_id", 24),
    ("CompiledMethod", "_deopt_handler_begin", 32),
    ("StubQueue", "_stub_buffer", 0),
    ("StubQueue", "_buffer_limit", 8),
    ("Method", "_constMethod", 0),
    ("ConstMethod", "_code_size", 0),
];

#[test]
fn parked_thread_is_read_with_its_blocker_and_both_kinds_of_frames() {
    let jvm = Jvm::new();
    let found = jvm.read().unwrap();
    assert!(!found.is_incomplete, "{found:?}");
    assert_eq!(found.containers, VirtualThreads::default().containers);
    // The thread that has not started yet is left out.
    let [thread] = &found.threads[..] else { panic!("{found:?}") };
    assert_eq!((thread.object, thread.number, &*thread.name), (jvm.threads[0], 21, "ABC"));
    assert_eq!((thread.state, thread.carrier), (VirtualState::Parked, None));
    assert!(!thread.is_moving);
    let on = thread.blocked_on.as_ref().unwrap();
    assert_eq!((on.kind, &*on.class, &on.owner), (BlockKind::Park, "a.Lock", &Owner::None));
    let expected = [
        ChunkFrame::Code { addr: Addr(jvm.code.0 + 8), compile_id: 7 },
        ChunkFrame::Interpreted { method: jvm.method, bci: Some(5) },
    ];
    assert_eq!(&*thread.frames, expected);
}

#[test]
fn cyclic_nodes_and_implausible_tables_terminate() {
    let mut jvm = Jvm::new();
    let node = jvm.node;
    jvm.set(node, 24, node.0);
    assert_eq!(jvm.read().unwrap().threads.len(), 1);
    jvm.set(jvm.table, 32, node.0);
    assert_eq!(jvm.read().unwrap().threads.len(), 1);
    // An implausible length.
    jvm.set(jvm.table, 16, u64::MAX);
    assert_eq!(jvm.read().unwrap().threads.len(), 0);
}

#[test]
fn cyclic_implausible_or_empty_chunks_terminate() {
    let mut jvm = Jvm::new();
    let chunk = jvm.chunk;
    jvm.set(chunk, 32, chunk.0);
    let found = jvm.read().unwrap();
    // The chunk is its own parent, so it is read 16 times (`MAX_CHUNKS`), with two frames each time.
    assert_eq!(found.threads[0].frames.len(), 2 * 16);
    jvm.set(chunk, 32, 0);
    for (sp, bottom) in [(0, 19), (1, 19), (4, u64::from(u32::MAX)), (18, 19)] {
        jvm.set(chunk, 16, sp);
        jvm.set(chunk, 24, bottom);
        let thread = jvm.read().unwrap().threads.remove(0);
        assert!(thread.is_moving && thread.frames.len() < 2, "{thread:?}");
    }
    // An empty chunk.
    jvm.set(chunk, 16, 19);
    jvm.set(chunk, 24, 19);
    let thread = jvm.read().unwrap().threads.remove(0);
    assert!(!thread.is_moving && thread.frames.is_empty(), "{thread:?}");
}

#[test]
fn later_read_has_the_same_result_and_the_maximum_number_limits_it() {
    let jvm = Jvm::new();
    let (layout, cache) = (jvm.image.read().unwrap().of_jdk(21), BootClasses::default());
    let read = |max| read(&own_memory(), &layout, &cache, max).unwrap();
    let first = read(MAX_VIRTUAL_THREADS);
    assert_eq!(first.threads.len(), 1);
    assert_eq!(read(MAX_VIRTUAL_THREADS), first);
    let none = read(0);
    assert!(none.threads.is_empty() && none.is_incomplete, "{none:?}");
}

#[test]
fn object_that_is_no_virtual_thread_is_left_out() {
    let mut jvm = Jvm::new();
    let (node, string) = (jvm.node, jvm.table);
    jvm.set(node, 16, string.0);
    let found = jvm.read().unwrap();
    assert!(found.threads.is_empty() && found.is_incomplete, "{found:?}");
}

proptest! {
    #[test]
    fn damaged_memory_never_panics(
        damage in prop::collection::vec((any::<usize>(), any::<u64>()), 0..6),
        small in prop::collection::vec((any::<usize>(), 0..4096_u64), 0..6),
        copies in prop::collection::vec((any::<usize>(), any::<usize>()), 0..6),
    ) {
        let mut jvm = Jvm::new();
        let layout = jvm.image.read().unwrap().of_jdk(21);
        for (index, value) in damage.into_iter().chain(small) {
            jvm.image.damage(index, value);
        }
        // References to other objects.
        let objects = [jvm.threads[0], jvm.threads[1], jvm.chunk, jvm.table, jvm.node];
        for (index, object) in copies {
            jvm.image.damage(index, objects[object % objects.len()].0);
        }
        if let Ok(found) = read(&own_memory(), &layout, &BootClasses::default(), MAX_VIRTUAL_THREADS) {
            prop_assert!(found.threads.len() <= 4096);
            for thread in &found.threads {
                prop_assert!(thread.frames.len() <= chunks::MAX_FRAMES + 1);
                prop_assert!(thread.container < found.containers.len());
            }
        }
    }

    #[test]
    fn arbitrary_words_are_frames_or_an_error(
        words in prop::collection::vec(any::<u64>(), 0..80),
        small in prop::collection::vec((any::<usize>(), -40..40_i64), 0..40),
        codes in prop::collection::vec((any::<usize>(), any::<bool>()), 0..20),
    ) {
        let jvm = Jvm::new();
        let memory = own_memory();
        let pages = &mut Pages::scattered(&memory);
        let mut words = words;
        for (index, value) in small {
            if let Some(at) = index.checked_rem(words.len()) {
                words[at] = value.cast_unsigned();
            }
        }
        for (index, is_code) in codes {
            if let Some(at) = index.checked_rem(words.len()) {
                words[at] = if is_code { jvm.code.0 } else { jvm.interpreter.0 } + 8;
            }
        }
        let mut frames = Frames::new(pages, &jvm.image.read().unwrap().of_jdk(21)).unwrap();
        let mut found = Vec::new();
        let _ = frames.walk(pages, &words, &mut found);
        prop_assert!(found.len() <= words.len());
    }
}
