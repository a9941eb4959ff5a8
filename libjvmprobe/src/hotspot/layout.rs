//! Table of all names in HotSpot's layout that are used here: fields, statics and types as
//! vmStructs exports them, and private statics as the symbol table names them.
//!
//! If a new JDK has renamed something, one name is added to a row; if it has changed a meaning, a row
//! is added. [`super::resolved`] looks up the names in each JVM. Relevant changes:
//!
//! | JDK | |
//! |---|---|
//! | 9 | the code cache has three heaps; blobs and nmethods hold addresses of their code, handlers and scopes instead of offsets; fields of `nmethod` move to `CompiledMethod`; interpreted frames hold their class's mirror; the generations of Serial and CMS are two fields instead of an array |
//! | 10 | `Flag` is renamed `JVMFlag`; G1 retains a second region for allocation (`heap` reads it from JDK 11 on) |
//! | 14 | CMS is removed; the fields of `ImmutableSpace` move to `MutableSpace`; G1 allocates by NUMA node; fields of `Universe` move to `CompressedKlassPointers`; `SafepointTracing` keeps the times of the last stop; threads are in `ThreadsSMRSupport`'s array instead of a linked list |
//! | 16 | `GenericGrowableArray` is renamed `GrowableArrayBase` |
//! | 17 | the index of the source file moves from the class to its constant pool |
//! | 20 | compressed integers do not use the byte 0 ([`super::compressed`]) |
//! | 21 | virtual threads: `ContinuationEntry`; the fields of a class are a compressed stream instead of an array; threads have lock stacks; `ConstMethod`'s flags are a struct; until JDK 23, the names of the classes of non-generational ZGC begin with an X |
//! | 22 | the fields of `CompressedKlassPointers` are no longer members of its struct `_narrow_klass`; `Space` is merged into `ContiguousSpace`; fields of `GenCollectedHeap` move to `SerialHeap` |
//! | 23 | `CompiledMethod` is merged into `nmethod`, with offsets instead of addresses and separately allocated debug information; `HeapRegion` is renamed `G1HeapRegion` |
//! | 24 | compact object headers; monitors hold the number of their owner instead of its address; Shenandoah counts used bytes in its global generation |
//! | 25 | nmethods have separately allocated metadata; ZGC counts by NUMA node |
//! | 26 | the CDS archive's bounds are called `_aot_metaspace`; nmethods have one deoptimisation handler instead of two, one of which was for method handle calls; Shenandoah counts used bytes in its free set |
//! | 27 | builds without JVMCI do not export `_tenure_traps` of `MethodData`, from which the offset of the invocation counter is derived; the generations of Parallel are fields of the heap instead of statics |
//! | 28 | the flags of fields have other numbers (value classes) |

/// Prefix of the mangled names of statics that hold the entry points of stubs; see [`super::code`].
pub(super) const STUBS: &str = "_ZN12StubRoutines";

/// The feature that needs a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    Version,
    Flags,
    PerfData,
    Operations,
    Stops,
    Collections,
    AnyHeap,
    Serial,
    Cms,
    Parallel,
    G1,
    Z,
    Shenandoah,
    Epsilon,
    Humongous,
    Pools,
    Code,
    Methods,
    Walking,
    Continuations,
    Classes,
    Sizes,
    Objects,
    Threads,
    NativeLocks,
    ThreadDump,
    ThreadCounts,
    Synchronizers,
    VirtualMonitors,
    ForwardedObjects,
    Compilations,
    Loaded,
    Usage,
    Loaders,
    Sources,
}

impl Feature {
    /// Returns the consequence of a missing row, for messages.
    pub(super) fn loss(self) -> &'static str {
        match self {
            Self::Version => "its version is unknown",
            Self::Flags => "its flags, and so its collector, are unknown",
            Self::PerfData => "causes and counts of collections are unknown",
            Self::Operations => "running VM operations have no names",
            Self::Stops => "stops can only be observed with probes",
            Self::Collections => "collections are not counted",
            Self::AnyHeap => "used heap is unknown",
            Self::Serial => "used heap of Serial is unknown",
            Self::Cms => "used heap of CMS is unknown",
            Self::Parallel => "used heap of Parallel is unknown",
            Self::G1 => "used heap of G1 is unknown",
            Self::Z => "used heap of ZGC is unknown",
            Self::Shenandoah => "used heap of Shenandoah is unknown",
            Self::Epsilon => "used heap of Epsilon is unknown",
            Self::Humongous => "humongous objects are not distinguished",
            Self::Pools => "sizes of memory pools are unknown",
            Self::Code => "compiled code has no names",
            Self::Methods => "methods have no names",
            Self::Walking => "stacks are walked by frame pointers",
            Self::Continuations => "stacks of virtual threads end at their mount point",
            Self::Classes => "classes have no names",
            Self::Sizes => "sizes of instances are unknown",
            Self::Objects => "objects are not counted",
            Self::Threads => "allocation by thread is unknown",
            Self::NativeLocks => "the JVM's own locks have no names",
            Self::ThreadDump => "threads are not listed, and thread names are truncated",
            Self::ThreadCounts => "hidden threads are recognized by name",
            Self::Synchronizers => "ownable synchronizers are listed only if threads wait for them",
            Self::VirtualMonitors => "monitors that unmounted virtual threads wait for are unknown",
            Self::ForwardedObjects => "objects that ZGC has moved are not found",
            Self::Compilations => "tiers of compilations are unknown",
            Self::Loaded => "its classes are not listed",
            Self::Usage => "which methods were called is unknown",
            Self::Loaders => "loaders and modules of classes are unknown",
            Self::Sources => "sources of classes are unknown",
        }
    }
}

/// Kind of a row's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A member's offset in its object, in bytes: `Type::field`.
    Offset,
    /// A static member's address: `Type::field`.
    Static,
    /// A type's size in bytes.
    Size,
    /// A private static's address, by its mangled name. A stripped file has no such names.
    Symbol,
}

/// One item that is looked up in a JVM.
#[derive(Debug)]
pub(super) struct Row {
    pub(crate) item: Item,
    pub(crate) kind: Kind,
    /// The item's names from oldest to newest, each with the first JDK that has this name. If a JVM has
    /// several of these names, the newest one is used.
    pub(crate) names: &'static [(u32, &'static str)],
    /// The last JDK that has the item.
    pub(crate) until: u32,
    pub(crate) features: &'static [Feature],
}

/// The value of [`Row::until`] if no known JDK has removed the item.
const NO_END: u32 = u32::MAX;

macro_rules! table {
    ($($item:ident $kind:ident [$($since:literal $name:literal),+] $(until $until:literal)?
       for $($feature:ident)+;)+) => {
        /// Identifies a row of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Item { $($item),+ }

        /// The table, in the order of [`Item`].
        pub(super) const TABLE: &[Row] = &[$(Row {
            item: Item::$item,
            kind: Kind::$kind,
            names: &[$(($since, $name)),+],
            until: { let last = NO_END; $(let last: u32 = { let _ = last; $until };)? last },
            features: &[$(Feature::$feature),+],
        }),+];
    };
}

table! {
    // runtime/vm_version.hpp, runtime/flags/jvmFlag.hpp, runtime/perfMemory.hpp
    VmRelease           Static [8 "Abstract_VM_Version::_s_vm_release"] for Version;
    VmInfo              Static [8 "Abstract_VM_Version::_s_internal_vm_info_string"] for Version;
    Flags               Static [8 "Flag::flags", 10 "JVMFlag::flags"] for Flags;
    FlagCount           Static [8 "Flag::numFlags", 10 "JVMFlag::numFlags"] for Flags;
    FlagSize            Size   [8 "Flag", 10 "JVMFlag"] for Flags;
    FlagName            Offset [8 "Flag::_name", 10 "JVMFlag::_name"] for Flags;
    FlagAddr            Offset [8 "Flag::_addr", 10 "JVMFlag::_addr"] for Flags;
    FlagType            Offset [8 "Flag::_type", 10 "JVMFlag::_type"] for Flags;
    PerfStart           Static [8 "PerfMemory::_start"] for PerfData;
    PerfCapacity        Static [8 "PerfMemory::_capacity"] for PerfData;

    // runtime/vmThread.hpp, runtime/vmOperations.hpp, runtime/safepoint.hpp, gc/shared/gcId.hpp
    CurrentOperation    Symbol [8 "_ZN8VMThread17_cur_vm_operationE"] for Operations;
    OperationNames      Symbol [8 "_ZN12VM_Operation6_namesE"] for Operations Stops;
    LastStopBegin       Symbol [14 "_ZN16SafepointTracing29_last_safepoint_begin_time_nsE"] for Stops;
    LastStopSync        Symbol [14 "_ZN16SafepointTracing28_last_safepoint_sync_time_nsE"] for Stops;
    LastStopEnd         Symbol [14 "_ZN16SafepointTracing27_last_safepoint_end_time_nsE"] for Stops;
    LastStopType        Symbol [14 "_ZN16SafepointTracing13_current_typeE"] for Stops;
    NextGcId            Symbol [8 "_ZN4GCId8_next_idE"] for Collections;

    // memory/universe.hpp, gc/shared/collectedHeap.hpp
    CollectedHeap       Static [8 "Universe::_collectedHeap"] for AnyHeap Collections;
    ReservedHeap        Offset [8 "CollectedHeap::_reserved"] for Synchronizers;
    RegionStart         Offset [8 "MemRegion::_start"] for Synchronizers;
    RegionWords         Offset [8 "MemRegion::_word_size"] for Synchronizers;
    TotalCollections    Offset [8 "CollectedHeap::_total_collections"] for Collections;

    // gc/serial, gc/shared/space.hpp, gc/shared/genCollectedHeap.hpp
    Generations         Offset [8 "GenCollectedHeap::_gens"] until 8 for Serial Cms;
    SerialYoung         Offset [9 "GenCollectedHeap::_young_gen", 22 "SerialHeap::_young_gen"] for Serial Cms;
    SerialOld           Offset [9 "GenCollectedHeap::_old_gen", 22 "SerialHeap::_old_gen"] for Serial Cms;
    SerialEden          Offset [8 "DefNewGeneration::_eden_space"] for Serial Cms;
    SerialFrom          Offset [8 "DefNewGeneration::_from_space"] for Serial Cms;
    SerialTenured       Offset [8 "OneContigSpaceCardGeneration::_the_space", 9 "TenuredGeneration::_the_space"] for Serial;
    ContiguousBottom    Offset [8 "Space::_bottom", 22 "ContiguousSpace::_bottom"] for Serial Cms Epsilon;
    ContiguousTop       Offset [8 "ContiguousSpace::_top"] for Serial Cms Epsilon;
    ContiguousEnd       Offset [8 "Space::_end", 22 "ContiguousSpace::_end"] for Pools;
    EpsilonSpace        Offset [11 "EpsilonHeap::_space"] for Epsilon;
    EpsilonCommitted    Offset [11 "EpsilonHeap::_virtual_space"] for Pools;

    // gc/cms
    CmsSpace            Offset [8 "ConcurrentMarkSweepGeneration::_cmsSpace"] until 13 for Cms;
    CmsDictionary       Offset [8 "CompactibleFreeListSpace::_dictionary"] until 13 for Cms;
    CmsBlock            Offset [8 "CompactibleFreeListSpace::_smallLinearAllocBlock"] until 13 for Cms;
    CmsLists            Offset [8 "CompactibleFreeListSpace::_indexedFreeList[0]"] until 13 for Cms;
    CmsBottom           Offset [8 "Space::_bottom"] until 21 for Cms;
    CmsEnd              Offset [8 "Space::_end"] until 21 for Cms;
    CmsTreeSize         Offset [8 "AFLBinaryTreeDictionary::_total_size"] until 13 for Cms;
    CmsBlockSize        Offset [8 "LinearAllocBlock::_word_size"] until 13 for Cms;
    CmsListCount        Offset [8 "AdaptiveFreeList<FreeChunk>::_count"] until 13 for Cms;
    CmsListSize         Size   [8 "AdaptiveFreeList<FreeChunk>"] until 13 for Cms;

    // gc/g1: g1CollectedHeap.hpp, g1Allocator.hpp, g1AllocRegion.hpp, g1HeapRegion.hpp
    G1Allocator         Offset [8 "G1CollectedHeap::_allocator"] until 8 for G1;
    G1AllocatorBytes    Offset [8 "G1Allocator::_summary_bytes_used"] until 8 for G1;
    G1Bytes             Offset [9 "G1CollectedHeap::_summary_bytes_used"] for G1;
    G1RegionBottom      Offset [8 "Space::_bottom", 12 "HeapRegion::_bottom", 23 "G1HeapRegion::_bottom"] for G1;
    G1RegionTop         Offset [8 "G1OffsetTableContigSpace::_top", 9 "G1ContiguousSpace::_top", 12 "HeapRegion::_top", 23 "G1HeapRegion::_top"] for G1;
    G1AllocRegionTable  Symbol [8 "_ZTV18MutatorAllocRegion"] for G1;
    G1DummyRegion       Symbol [8 "_ZN13G1AllocRegion13_dummy_regionE"] for G1;
    G1GrainBytes        Static [8 "HeapRegion::GrainBytes", 23 "G1HeapRegion::GrainBytes"] for Humongous;
    G1Monitoring        Offset [8 "G1CollectedHeap::_g1mm", 21 "G1CollectedHeap::_monitoring_support"] for Pools;
    G1EdenUsed          Offset [8 "G1MonitoringSupport::_eden_used", 12 "G1MonitoringSupport::_eden_space_used"] for Pools;
    G1EdenCommitted     Offset [8 "G1MonitoringSupport::_eden_committed", 12 "G1MonitoringSupport::_eden_space_committed"] for Pools;
    G1SurvivorUsed      Offset [8 "G1MonitoringSupport::_survivor_used", 12 "G1MonitoringSupport::_survivor_space_used"] for Pools;
    G1SurvivorCommitted Offset [8 "G1MonitoringSupport::_survivor_committed", 12 "G1MonitoringSupport::_survivor_space_committed"] for Pools;
    G1OldUsed           Offset [8 "G1MonitoringSupport::_old_used", 12 "G1MonitoringSupport::_old_gen_used"] for Pools;
    G1OldCommitted      Offset [8 "G1MonitoringSupport::_old_committed", 12 "G1MonitoringSupport::_old_gen_committed"] for Pools;

    // gc/parallel
    ParallelYoungStatic Static [8 "ParallelScavengeHeap::_young_gen"] until 26 for Parallel;
    ParallelOldStatic   Static [8 "ParallelScavengeHeap::_old_gen"] until 26 for Parallel;
    ParallelYoung       Offset [27 "ParallelScavengeHeap::_young_gen"] for Parallel;
    ParallelOld         Offset [27 "ParallelScavengeHeap::_old_gen"] for Parallel;
    ParallelEden        Offset [8 "PSYoungGen::_eden_space"] for Parallel;
    ParallelFrom        Offset [8 "PSYoungGen::_from_space"] for Parallel;
    ParallelObjects     Offset [8 "PSOldGen::_object_space"] for Parallel;
    MutableBottom       Offset [8 "ImmutableSpace::_bottom", 14 "MutableSpace::_bottom"] for Parallel;
    MutableTop          Offset [8 "MutableSpace::_top"] for Parallel;
    MutableEnd          Offset [8 "ImmutableSpace::_end", 14 "MutableSpace::_end"] for Pools;
    ParallelTo          Offset [8 "PSYoungGen::_to_space"] for Pools;
    ParallelMaxYoung    Offset [8 "PSYoungGen::_max_gen_size"] until 27 for Pools;

    // gc/z, gc/x
    XHeapOfHeap         Offset [21 "XCollectedHeap::_heap"] until 23 for Z;
    XAllocator          Offset [21 "XHeap::_page_allocator"] until 23 for Z;
    XUsed               Offset [21 "XPageAllocator::_used"] until 23 for Z;
    XCapacity           Offset [21 "XPageAllocator::_capacity"] until 23 for Pools;
    ZHeapOfHeap         Offset [11 "ZCollectedHeap::_heap"] for Z;
    ZAllocator          Offset [11 "ZHeap::_page_allocator"] for Z;
    ZUsed               Offset [11 "ZPageAllocator::_used"] until 24 for Z;
    ZPhysical           Offset [11 "ZPageAllocator::_physical"] until 11 for Pools;
    ZCapacity           Offset [12 "ZPageAllocator::_capacity"] until 24 for Pools;
    ZMaxCapacity        Offset [12 "ZPageAllocator::_max_capacity"] for Pools;
    ZNodes              Static [25 "ZNUMA::_count"] for Z;
    ZPartitions         Offset [25 "ZPageAllocator::_partitions"] for Z;
    ZPartitionAddr      Offset [25 "ZPerNUMAZPartition::_addr"] for Z;
    ZPartitionUsed      Offset [25 "ZPartition::_used"] for Z;
    ZPartitionCapacity  Offset [25 "ZPartition::_capacity"] for Pools;

    // gc/z, gc/x: z{Globals,ForwardingTable,GranuleMap,Forwarding,Generation}.hpp, vmStructs_z.hpp (read from JDK 17 on)
    XGlobals            Static [21 "XGlobalsForVMStructs::_instance_p"] until 23 for ForwardedObjects;
    XOffsetMask         Offset [21 "XGlobalsForVMStructs::_XAddressOffsetMask"] until 23 for ForwardedObjects;
    XBadMask            Offset [21 "XGlobalsForVMStructs::_XAddressBadMask"] until 23 for ForwardedObjects;
    XGoodMask           Offset [21 "XGlobalsForVMStructs::_XAddressGoodMask"] until 23 for ForwardedObjects;
    XForwardingTable    Offset [21 "XHeap::_forwarding_table"] until 23 for ForwardedObjects;
    XTableMap           Offset [21 "XForwardingTable::_map"] until 23 for ForwardedObjects;
    XGranules           Offset [21 "XGranuleMapForForwarding::_map"] until 23 for ForwardedObjects;
    XForwardingRange    Offset [21 "XForwarding::_virtual"] until 23 for ForwardedObjects;
    XRangeStart         Offset [21 "XVirtualMemory::_start"] until 23 for ForwardedObjects;
    XForwardingShift    Offset [21 "XForwarding::_object_alignment_shift"] until 23 for ForwardedObjects;
    XForwardingEntries  Offset [21 "XForwarding::_entries"] until 23 for ForwardedObjects;
    XEntriesLength      Offset [21 "XAttachedArrayForForwarding::_length"] until 23 for ForwardedObjects;
    XForwardingSize     Size   [21 "XForwarding"] until 23 for ForwardedObjects;
    ZGlobals            Static [17 "ZGlobalsForVMStructs::_instance_p"] for ForwardedObjects;
    ZOffsetMask         Offset [17 "ZGlobalsForVMStructs::_ZAddressOffsetMask"] for ForwardedObjects;
    ZBadMask            Offset [17 "ZGlobalsForVMStructs::_ZAddressBadMask"] until 20 for ForwardedObjects;
    ZGoodMask           Offset [17 "ZGlobalsForVMStructs::_ZAddressGoodMask"] until 20 for ForwardedObjects;
    ZForwardingTable    Offset [17 "ZHeap::_forwarding_table"] until 20 for ForwardedObjects;
    ZTableMap           Offset [17 "ZForwardingTable::_map"] for ForwardedObjects;
    ZGranules           Offset [17 "ZGranuleMapForForwarding::_map"] for ForwardedObjects;
    ZForwardingRange    Offset [17 "ZForwarding::_virtual"] for ForwardedObjects;
    ZRangeStart         Offset [17 "ZVirtualMemory::_start"] for ForwardedObjects;
    ZForwardingShift    Offset [17 "ZForwarding::_object_alignment_shift"] for ForwardedObjects;
    ZForwardingEntries  Offset [17 "ZForwarding::_entries"] for ForwardedObjects;
    ZEntriesLength      Offset [17 "ZAttachedArrayForForwarding::_length"] for ForwardedObjects;
    ZForwardingSize     Size   [17 "ZForwarding"] for ForwardedObjects;
    ZLoadBadMask        Offset [21 "ZGlobalsForVMStructs::_ZPointerLoadBadMask"] for ForwardedObjects;
    ZLoadGoodMask       Offset [21 "ZGlobalsForVMStructs::_ZPointerLoadGoodMask"] for ForwardedObjects;
    ZPageTable          Offset [21 "ZHeap::_page_table"] for ForwardedObjects;

    // gc/shenandoah
    ShenandoahUsed      Offset [11 "ShenandoahHeap::_used"] until 23 for Shenandoah;
    ShenandoahGlobal    Offset [24 "ShenandoahHeap::_global_generation"] until 25 for Shenandoah;
    ShenandoahGlobalUsed Offset [24 "ShenandoahGeneration::_used"] until 25 for Shenandoah;
    ShenandoahFreeSet   Offset [26 "ShenandoahHeap::_free_set"] for Shenandoah;
    ShenandoahFreeUsed  Offset [26 "ShenandoahFreeSet::_total_global_used"] for Shenandoah;
    ShenandoahCommitted Offset [11 "ShenandoahHeap::_committed"] for Pools;
    ShenandoahRegion    Static [11 "ShenandoahHeapRegion::RegionSizeBytes"] for Pools;

    // services/memoryService.hpp, memory/metaspace.hpp (JDK 8 to 15), memory/metaspace/{runningCounters,metaspaceContext}.hpp
    MemoryPools         Symbol [8 "_ZN13MemoryService11_pools_listE"] for Pools;
    MetaspaceUsed       Symbol [8 "_ZN12MetaspaceAux11_used_wordsE", 10 "_ZN14MetaspaceUtils11_used_wordsE"] until 15 for Pools;
    MetaspaceSpaces     Symbol [8 "_ZN9Metaspace11_space_listE"] until 15 for Pools;
    ClassSpaces         Symbol [8 "_ZN9Metaspace17_class_space_listE"] until 15 for Pools;
    MetaspaceContext    Symbol [16 "_ZN9metaspace16MetaspaceContext23_nonclass_space_contextE"] for Pools;
    ClassSpaceContext   Symbol [16 "_ZN9metaspace16MetaspaceContext20_class_space_contextE"] for Pools;
    MetaspaceUsedCount  Symbol [16 "_ZN9metaspace15RunningCounters22_used_nonclass_counterE"] for Pools;
    ClassSpaceUsedCount Symbol [16 "_ZN9metaspace15RunningCounters19_used_class_counterE"] for Pools;

    // code/codeCache.hpp, utilities/growableArray.hpp, memory/heap.hpp, memory/virtualspace.hpp
    CodeHeapOne         Static [8 "CodeCache::_heap"] until 8 for Code Walking;
    CodeHeaps           Static [9 "CodeCache::_heaps"] for Code Walking;
    ArrayLength         Offset [8 "GenericGrowableArray::_len", 16 "GrowableArrayBase::_len"] for Code Walking;
    ArraySize           Size   [8 "GenericGrowableArray", 16 "GrowableArrayBase"] for Code Walking;
    ArrayData           Offset [8 "GrowableArray<int>::_data"] for Code Walking;
    HeapMemory          Offset [8 "CodeHeap::_memory"] for Code Walking;
    HeapSegmap          Offset [8 "CodeHeap::_segmap"] for Code Walking;
    HeapSegmentLog      Offset [8 "CodeHeap::_log2_segment_size"] for Code Walking;
    SpaceLow            Offset [8 "VirtualSpace::_low"] for Code Walking;
    SpaceHigh           Offset [8 "VirtualSpace::_high"] for Code Walking;
    SpaceLowBoundary    Offset [8 "VirtualSpace::_low_boundary"] for Code Walking;
    SpaceHighBoundary   Offset [8 "VirtualSpace::_high_boundary"] for Code Walking;
    BlockSize           Size   [8 "HeapBlock"] for Code Walking;
    BlockHeaderSize     Size   [8 "HeapBlock::Header"] for Code;
    BlockLength         Offset [8 "HeapBlock::Header::_length"] for Code;
    BlockUsed           Offset [8 "HeapBlock::Header::_used"] for Code;

    // code/codeBlob.hpp, code/nmethod.hpp (JDK 9 to 22: also code/compiledMethod.hpp)
    BlobName            Offset [8 "CodeBlob::_name"] for Code Walking;
    BlobSize            Offset [8 "CodeBlob::_size"] for Code;
    BlobData            Offset [8 "CodeBlob::_data_offset"] for Code Walking;
    BlobCodeOffset8     Offset [8 "CodeBlob::_code_offset"] until 8 for Code Walking;
    BlobCodeBegin       Offset [9 "CodeBlob::_code_begin"] until 22 for Code Walking;
    BlobCodeOffset      Offset [23 "CodeBlob::_code_offset"] for Code Walking;
    BlobFrameSize       Offset [8 "CodeBlob::_frame_size"] for Walking;
    BlobFrameComplete   Offset [8 "CodeBlob::_frame_complete_offset"] for Walking;
    CodeMethod          Offset [8 "nmethod::_method", 9 "CompiledMethod::_method", 23 "nmethod::_method"] for Code;
    CompileId           Offset [8 "nmethod::_compile_id"] for Code Walking;
    VerifiedEntry       Offset [8 "nmethod::_verified_entry_point"] until 22 for Walking;
    VerifiedEntryOffset Offset [23 "nmethod::_verified_entry_offset"] for Walking;
    OsrEntry            Offset [8 "nmethod::_osr_entry_point"] for Walking;
    DeoptOffset8        Offset [8 "nmethod::_deoptimize_offset"] until 8 for Walking;
    DeoptMhOffset8      Offset [8 "nmethod::_deoptimize_mh_offset"] until 8 for Walking;
    DeoptBegin          Offset [9 "CompiledMethod::_deopt_handler_begin"] until 22 for Walking;
    DeoptMhBegin        Offset [9 "CompiledMethod::_deopt_mh_handler_begin"] until 22 for Walking;
    DeoptOffset         Offset [23 "nmethod::_deopt_handler_offset", 26 "nmethod::_deopt_handler_entry_offset"] for Walking;
    DeoptMhOffset       Offset [23 "nmethod::_deopt_mh_handler_offset"] until 25 for Walking;
    OrigPcOffset        Offset [8 "nmethod::_orig_pc_offset"] for Walking;

    // code/nmethod.hpp, code/pcDesc.hpp
    ImmutableData       Offset [23 "nmethod::_immutable_data"] for Code;
    ImmutableSize       Offset [23 "nmethod::_immutable_data_size"] for Code;
    MutableData         Offset [25 "CodeBlob::_mutable_data"] for Code;
    RelocationSize      Offset [23 "CodeBlob::_relocation_size"] for Code;
    ScopesPcsOffset     Offset [8 "nmethod::_scopes_pcs_offset"] for Code;
    ScopesDataOffset8   Offset [8 "nmethod::_scopes_data_offset"] until 8 for Code;
    ScopesDataOffset    Offset [23 "nmethod::_scopes_data_offset"] for Code;
    ScopesDataBegin     Offset [9 "CompiledMethod::_scopes_data_begin"] until 22 for Code;
    DependenciesOffset  Offset [8 "nmethod::_dependencies_offset"] until 22 for Code;
    OopsOffset          Offset [8 "nmethod::_oops_offset"] until 22 for Code;
    MetadataOffset      Offset [8 "nmethod::_metadata_offset"] until 22 for Code;
    ExceptionOffset     Offset [8 "nmethod::_exception_offset"] for Code;
    PcDescSize          Size   [8 "PcDesc"] for Code;
    PcDescPc            Offset [8 "PcDesc::_pc_offset"] for Code;
    PcDescScope         Offset [8 "PcDesc::_scope_decode_offset"] for Code;

    // interpreter/abstractInterpreter.hpp, code/stubs.hpp, runtime/continuationEntry.hpp
    Interpreter         Static [8 "AbstractInterpreter::_code"] for Walking;
    StubBuffer          Offset [8 "StubQueue::_stub_buffer"] for Walking;
    StubLimit           Offset [8 "StubQueue::_buffer_limit"] for Walking;
    ReturnBarrier       Symbol [21 "_ZN12StubRoutines19_cont_returnBarrierE"] for Continuations;
    ContinuationReturn  Symbol [21 "_ZN17ContinuationEntry10_return_pcE"] for Continuations;

    // oops/{method,constMethod,constantPool,instanceKlass}.hpp
    ConstMethodOf       Offset [8 "Method::_constMethod"] for Methods Walking;
    ConstMethodSize     Size   [8 "ConstMethod"] for Methods Walking;
    Constants           Offset [8 "ConstMethod::_constants"] for Methods;
    CodeSize            Offset [8 "ConstMethod::_code_size"] for Methods;
    ConstMethodFlags    Offset [8 "ConstMethod::_flags", 21 "ConstMethod::_flags._flags"] for Methods;
    NameIndex           Offset [8 "ConstMethod::_name_index"] for Methods;
    SignatureIndex      Offset [8 "ConstMethod::_signature_index"] for Methods;
    PoolSize            Size   [8 "ConstantPool"] for Methods ThreadDump;
    PoolHolder          Offset [8 "ConstantPool::_pool_holder"] for Methods;
    ClassFileIndex      Offset [8 "InstanceKlass::_source_file_name_index"] until 16 for Methods;
    PoolFileIndex       Offset [17 "ConstantPool::_source_file_name_index"] for Methods;

    // oops/{klass,symbol,compressedKlass}.hpp, classfile/{classLoaderData,javaClasses}.hpp
    KlassName           Offset [8 "Klass::_name"] for Methods Classes ThreadDump;
    LayoutHelper        Offset [8 "Klass::_layout_helper"] for Classes Sizes Objects ThreadDump;
    NextClass           Offset [9 "Klass::_next_link"] for Sizes Loaded;
    SymbolLength        Offset [8 "Symbol::_length"] for Methods Classes ThreadDump;
    SymbolBody          Offset [8 "Symbol::_body", 9 "Symbol::_body[0]"] for Methods Classes ThreadDump;
    Loaders             Static [8 "ClassLoaderDataGraph::_head"] for Sizes Loaded;
    NextLoader          Offset [8 "ClassLoaderData::_next"] for Sizes Loaded;
    FirstClass          Offset [9 "ClassLoaderData::_klasses"] for Sizes Loaded;
    NarrowKlassBase     Static [8 "Universe::_narrow_klass._base", 14 "CompressedKlassPointers::_narrow_klass._base", 22 "CompressedKlassPointers::_base"] for Objects ThreadDump;
    NarrowKlassShift    Static [8 "Universe::_narrow_klass._shift", 14 "CompressedKlassPointers::_narrow_klass._shift", 22 "CompressedKlassPointers::_shift"] for Objects ThreadDump;
    MirrorSize          Static [8 "java_lang_Class::_oop_size_offset"] for Objects;

    // oops/{klass,instanceKlass,array,oopHandle}.hpp, classfile/classLoaderData.hpp
    ClassLoaderOf       Offset [9 "Klass::_class_loader_data"] for Loaded;
    InitState           Offset [8 "InstanceKlass::_init_state"] for Loaded;
    InitThread          Offset [8 "InstanceKlass::_init_thread"] for Loaded;
    MethodsOf           Offset [8 "InstanceKlass::_methods"] for Loaded;
    ConstantsOf         Offset [8 "InstanceKlass::_constants"] for Loaded ThreadDump;
    MiscFlags           Offset [9 "InstanceKlass::_misc_flags"] until 20 for Usage;
    VtableLength        Offset [9 "Klass::_vtable_len"] for Loaded;
    ItableLength        Offset [8 "InstanceKlass::_itable_len"] for Loaded;
    ClassSize           Size   [8 "InstanceKlass"] for Loaded;
    PoolLength          Offset [8 "ConstantPool::_length"] for Loaded ThreadDump;
    MethodArrayLength   Offset [8 "Array<int>::_length"] for Loaded ThreadDump;
    MethodArrayData     Offset [9 "Array<Method*>::_data"] for Loaded;
    ClassAnnotations    Offset [8 "InstanceKlass::_annotations"] for Loaders;
    ArraysOfClass       Offset [8 "InstanceKlass::_array_klasses"] for Loaders;
    HasOwnLoaderData    Offset [9 "ClassLoaderData::_is_anonymous", 13 "ClassLoaderData::_is_unsafe_anonymous", 15 "ClassLoaderData::_has_class_mirror_holder"] for Loaded;
    LoaderDataSize      Size   [8 "ClassLoaderData"] for Loaders;
    Mirror              Offset [8 "Klass::_java_mirror"] for Sources;
    NarrowOopBase       Static [8 "Universe::_narrow_oop._base", 13 "CompressedOops::_narrow_oop._base", 22 "CompressedOops::_base"] for Sources ThreadDump;
    NarrowOopShift      Static [8 "Universe::_narrow_oop._shift", 13 "CompressedOops::_narrow_oop._shift", 22 "CompressedOops::_shift"] for Sources ThreadDump;
    ProtectionDomainAt  Symbol [8 "_ZN15java_lang_Class25_protection_domain_offsetE"] for Sources;
    RedefinedCountAt    Symbol [13 "_ZN15java_lang_Class27_classRedefinedCount_offsetE"] for Usage;
    ArchiveBase         Symbol [9 "_ZN12MetaspaceObj22_shared_metaspace_baseE", 26 "_ZN12MetaspaceObj19_aot_metaspace_baseE"] for Usage;
    ArchiveTop          Symbol [9 "_ZN12MetaspaceObj21_shared_metaspace_topE", 26 "_ZN12MetaspaceObj18_aot_metaspace_topE"] for Usage;

    // oops/{method,constMethod,methodCounters,methodData}.hpp, interpreter/invocationCounter.hpp
    MethodSize          Size   [8 "Method"] for Usage;
    MethodAccess        Offset [8 "Method::_access_flags"] for Usage;
    MethodFlags         Offset [9 "Method::_flags"] until 20 for Usage;
    IntrinsicId         Offset [8 "Method::_intrinsic_id"] for Usage;
    CodeOfMethod        Offset [8 "Method::_code"] for Usage;
    CountersOf          Offset [8 "Method::_method_counters"] for Usage;
    ProfileOf           Offset [8 "Method::_method_data"] for Usage;
    Invocations         Offset [8 "MethodCounters::_invocation_counter"] for Usage;
    ProfileTraps        Offset [9 "MethodData::_tenure_traps"] until 26 for Usage;
    ProfileSize         Size   [8 "MethodData"] for Usage;
    ConstMethodWords    Offset [8 "ConstMethod::_constMethod_size"] for Usage;
    Redefinitions       Symbol [17 "_ZN11JvmtiExport19_redefinition_countE"] for Usage;
    HasRedefined        Symbol [8 "_ZN11JvmtiExport22_has_redefined_a_classE"] until 16 for Usage;
    OutOfMetaspace      Symbol [11 "_ZN20ClassLoaderDataGraph14_metaspace_oomE"] for Usage;
    PoolTags            Offset [8 "ConstantPool::_tags"] for Usage;
    PrimarySupers       Offset [8 "Klass::_primary_supers[0]"] for Usage;
    Supers              Offset [8 "Klass::_secondary_supers"] for Usage;
    ByteArrayData       Offset [8 "Array<u1>::_data"] for Usage ThreadDump;
    OsThread            Offset [8 "JavaThread::_osthread", 22 "Thread::_osthread"] for Loaded ThreadDump;
    OsThreadId          Offset [8 "OSThread::_thread_id"] for Loaded ThreadDump;

    // runtime/{thread,javaThread,threadSMR}.hpp, gc/shared/threadLocalAllocBuffer.hpp
    AllocatedBytes      Offset [8 "Thread::_allocated_bytes"] for Threads;
    Tlab                Offset [8 "Thread::_tlab"] for Threads;
    TlabStart           Offset [8 "ThreadLocalAllocBuffer::_start"] for Threads;
    TlabTop             Offset [8 "ThreadLocalAllocBuffer::_top"] for Threads;
    TlabEnd             Offset [8 "ThreadLocalAllocBuffer::_end"] for Synchronizers;
    TlabDesiredSize     Offset [8 "ThreadLocalAllocBuffer::_desired_size"] for Threads Synchronizers;
    ThreadList          Static [8 "Threads::_thread_list"] until 13 for Threads ThreadDump;
    NextThread          Offset [8 "JavaThread::_next"] until 13 for Threads ThreadDump;
    ThreadsList         Static [14 "ThreadsSMRSupport::_java_thread_list"] for Threads ThreadDump;
    ThreadsLength       Offset [14 "ThreadsList::_length"] for Threads ThreadDump;
    ThreadsArray        Offset [14 "ThreadsList::_threads"] for Threads ThreadDump;

    // oops/{klass,instanceKlass,array}.hpp
    SuperClass          Offset [8 "Klass::_super"] for ThreadDump;
    FieldsOf            Offset [8 "InstanceKlass::_fields"] until 20 for ThreadDump;
    FieldCount          Offset [8 "InstanceKlass::_java_fields_count"] until 20 for ThreadDump;
    ShortArrayData      Offset [8 "Array<u2>::_data"] until 20 for ThreadDump;
    FieldStream         Offset [21 "InstanceKlass::_fieldinfo_stream"] for ThreadDump;

    // runtime/mutexLocker.cpp
    NativeLockArray     Symbol [17 "_ZL12_mutex_array"] until 21 for NativeLocks;
    NativeLocks         Static [25 "Mutex::_mutex_array"] for NativeLocks;

    // runtime/{javaThread,objectMonitor,lockStack}.hpp; before JDK 17, the monitors of a thread are in runtime/thread.hpp
    JavaThreadTable     Symbol [8 "_ZTV10JavaThread"] for ThreadCounts;
    AgentThreadTable    Symbol [8 "_ZTV16JvmtiAgentThread"] for ThreadCounts;
    NotificationThreadTable Symbol [16 "_ZTV18NotificationThread"] for ThreadCounts;
    AttachThreadTable   Symbol [23 "_ZTV20AttachListenerThread"] for ThreadCounts;
    RecorderThreadTable Symbol [23 "_ZTV17JfrRecorderThread"] for ThreadCounts;
    ThreadObject        Offset [8 "JavaThread::_threadObj"] for ThreadDump;
    Anchor              Offset [8 "JavaThread::_anchor"] for ThreadDump;
    AnchorSp            Offset [8 "JavaFrameAnchor::_last_Java_sp"] for ThreadDump;
    AnchorPc            Offset [8 "JavaFrameAnchor::_last_Java_pc"] for ThreadDump;
    AnchorFp            Offset [8 "JavaFrameAnchor::_last_Java_fp"] for ThreadDump;
    PendingMonitor      Offset [8 "Thread::_current_pending_monitor", 17 "JavaThread::_current_pending_monitor"] for ThreadDump;
    WaitingMonitor      Offset [8 "Thread::_current_waiting_monitor", 17 "JavaThread::_current_waiting_monitor"] for ThreadDump;
    StackBase           Offset [8 "JavaThread::_stack_base"] for ThreadDump;
    StackSize           Offset [8 "JavaThread::_stack_size"] for ThreadDump;
    LockStackOf         Offset [21 "JavaThread::_lock_stack"] for ThreadDump;
    LockStackTop        Offset [21 "LockStack::_top"] for ThreadDump;
    LockStackBase       Offset [21 "LockStack::_base[0]"] for ThreadDump;
    VirtualThreadOf     Offset [21 "JavaThread::_vthread"] for ThreadDump;
    MonitorOwnerId      Offset [24 "JavaThread::_monitor_owner_id"] for ThreadDump;
    MonitorObject       Offset [8 "ObjectMonitor::_object"] for ThreadDump;
    MonitorOwner        Offset [8 "ObjectMonitor::_owner"] for ThreadDump;
    StackLocker         Offset [24 "ObjectMonitor::_stack_locker"] until 25 for ThreadDump;
    NextMonitor         Offset [16 "ObjectMonitor::_next_om"] for ThreadDump;
    MonitorsInUse       Static [16 "ObjectSynchronizer::_in_use_list"] for ThreadDump;
    MonitorListHead     Offset [16 "MonitorList::_head"] for ThreadDump;

    // classfile/javaClasses.hpp
    ObjectWaiterAt      Symbol [24 "_ZN23java_lang_VirtualThread20_objectWaiter_offsetE"] for VirtualMonitors;
    LockStackSizeAt     Symbol [24 "_ZN26jdk_internal_vm_StackChunk21_lockStackSize_offsetE"] for VirtualMonitors;

    // compiler/compileTask.hpp
    TaskLevel           Offset [8 "CompileTask::_comp_level"] for Compilations;
    TaskOsrBci          Offset [8 "CompileTask::_osr_bci"] for Compilations;
}
