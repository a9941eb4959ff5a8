//! Process context: resource attributes that a program publishes in its own memory.
//!
//! OpenTelemetry's SDKs and agents publish them for profilers. A mapping with a fixed name contains a header, which
//! points to a protobuf message. Source: OTEP 4719, "Process Context: Sharing Resource Attributes with External
//! Readers" (open-telemetry/opentelemetry-specification, oteps/profiles/4719-process-ctx.md).
//!
//! The program can publish anything, so the attributes are only what it claims about itself.

use std::cell::Cell;

use prost::{Message, Oneof};

use crate::{
    Addr, Error, Result,
    process::{
        Fate, Process, maps,
        memory::Memory,
        service::{Attributes, MAX_ATTRIBUTES, bounded},
    },
};

/// Beginnings of the name of the mapping in /proc/PID/maps. The name depends on what the kernel supports.
const NAMES: [&[u8]; 3] = [b"[anon_shmem:OTEL_CTX]", b"[anon:OTEL_CTX]", b"/memfd:OTEL_CTX"];
/// Maximum number of mappings with such a name that are examined. A process has one.
const MAX_MAPPINGS: usize = 4;
const SIGNATURE: [u8; 8] = *b"OTEL_CTX";
/// Version of the format that is decoded.
const VERSION: u32 = 2;
/// Maximum size of a message in bytes. Messages usually have 1 kB.
const MAX_PAYLOAD: u32 = 64 << 10;
/// Maximum number of attempts to read a context that its program changes at the same time.
const TRIES: usize = 3;

/// Returns the attributes that a process publishes; `None` if it publishes none, or if they cannot be read. Attributes
/// whose value is a list, a map or bytes are left out.
pub(crate) fn read(process: &Process) -> Option<Attributes> {
    let read = || -> Result<Option<Attributes>> {
        let count = Cell::new(0);
        let is_wanted = |line: &[u8]| {
            let is_wanted = is_context(line) && count.get() < MAX_MAPPINGS;
            count.set(count.get() + usize::from(is_wanted));
            is_wanted
        };
        let mappings = maps::of(process.pid, is_wanted)?;
        if mappings.is_empty() {
            return Ok(None);
        }
        let memory = Memory::open(process.pid)?;
        let context =
            mappings.iter().find_map(|mapping| read_at(&memory, Addr(mapping.address.0)).ok());
        // Otherwise, the PID may belong to another process now.
        Ok(context.filter(|_| process.fate() == Fate::Alive))
    };
    match read() {
        Ok(context) => context,
        Err(error) => {
            log::debug!("cannot read the process context of process {}: {error}", process.pid);
            None
        }
    }
}

/// Returns whether a line of /proc/PID/maps is that of a mapping with a context.
fn is_context(line: &[u8]) -> bool {
    let name = maps::name_of(line);
    NAMES.iter().any(|begin| name.starts_with(begin))
}

/// Reads the context whose header is at this address.
fn read_at(memory: &Memory, addr: Addr) -> Result<Attributes> {
    for _ in 0..TRIES {
        let header = Header::parse(&memory.array(addr)?)?;
        if header.published_ns == 0 {
            // The program is changing it.
            continue;
        }
        let payload = memory.read(header.payload, header.size)?;
        if Header::parse(&memory.array(addr)?)? == header {
            return decode(&payload);
        }
    }
    Err(Error::layout(format!("the process context at {addr} changes while it is read")))
}

/// Header of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    /// Size of the message in bytes.
    size: usize,
    /// Time of the last change; 0 during a change.
    published_ns: u64,
    /// Address of the message.
    payload: Addr,
}

impl Header {
    fn parse(bytes: &[u8; 32]) -> Result<Self> {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (version, size) = (word(8), word(12));
        if bytes[..8] != SIGNATURE || version != VERSION {
            return Err(Error::layout("no process context of a supported version"));
        }
        if size > MAX_PAYLOAD {
            return Err(Error::layout(format!("a process context of {size} bytes")));
        }
        let halves = bytes[16..].as_chunks::<8>().0;
        let [published_ns, payload] = [0, 1].map(|at| u64::from_ne_bytes(halves[at]));
        Ok(Self { size: size as usize, published_ns, payload: Addr(payload) })
    }
}

/// The message `ProcessContext`, without the attributes that are not part of the resource.
#[derive(Clone, PartialEq, Message)]
struct ProcessContext {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

/// A value. Fields that are not listed here are skipped, so values are never nested.
#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Scalar", tags = "1, 2, 3, 4")]
    value: Option<Scalar>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Scalar {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

/// Returns the attributes in a message.
pub(crate) fn decode(payload: &[u8]) -> Result<Attributes> {
    let context = ProcessContext::decode(payload)
        .map_err(|error| Error::layout(format!("invalid process context: {error}")))?;
    let all = context.resource.unwrap_or_default().attributes.into_iter();
    let attributes = all.filter_map(|KeyValue { key, value }| {
        let value = match value?.value? {
            Scalar::Text(text) => text,
            Scalar::Bool(value) => value.to_string(),
            Scalar::Int(value) => value.to_string(),
            Scalar::Double(value) => value.to_string(),
        };
        Some((bounded(&key), bounded(&value)))
    });
    let is_set = |(key, value): &(String, String)| !key.is_empty() && !value.is_empty();
    Ok(attributes.filter(is_set).take(MAX_ATTRIBUTES).collect())
}

#[cfg(test)]
pub(crate) mod testing {
    use rustix::{
        fs::{MemfdFlags, ftruncate, memfd_create},
        mm::{MapFlags, ProtFlags, mmap, munmap},
    };

    use super::{AnyValue, KeyValue, ProcessContext, Resource, Scalar, VERSION};

    /// Size of the mapping.
    const SIZE: usize = 4096;

    pub(super) fn attribute(key: &str, value: Scalar) -> KeyValue {
        KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }) }
    }

    pub(super) fn message(attributes: Vec<KeyValue>) -> Vec<u8> {
        use prost::Message;
        ProcessContext { resource: Some(Resource { attributes }) }.encode_to_vec()
    }

    pub(super) fn header(version: u32, size: usize, published_ns: u64, payload: u64) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&super::SIGNATURE);
        bytes[8..12].copy_from_slice(&version.to_ne_bytes());
        bytes[12..16].copy_from_slice(&u32::try_from(size).unwrap().to_ne_bytes());
        bytes[16..24].copy_from_slice(&published_ns.to_ne_bytes());
        bytes[24..].copy_from_slice(&payload.to_ne_bytes());
        bytes
    }

    /// A process context of this process, which exists until it is dropped.
    pub(crate) struct Published {
        mapping: *mut std::ffi::c_void,
        _payload: Vec<u8>,
    }

    impl Published {
        /// Publishes one attribute.
        pub(crate) fn new(key: &str, value: &str) -> Self {
            let payload = message(vec![attribute(key, Scalar::Text(value.into()))]);
            let header = header(VERSION, payload.len(), 1, payload.as_ptr() as u64);
            let file = memfd_create("OTEL_CTX", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, SIZE as u64).unwrap();
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the kernel chooses an unused address.
            let mapping = unsafe {
                mmap(std::ptr::null_mut(), SIZE, access, MapFlags::PRIVATE, &file, 0).unwrap()
            };
            // SAFETY: the mapping is large enough, and nothing else uses it.
            unsafe { mapping.cast::<[u8; 32]>().write(header) };
            Self { mapping, _payload: payload }
        }
    }

    impl Drop for Published {
        fn drop(&mut self) {
            // SAFETY: nothing else uses the mapping.
            unsafe { munmap(self.mapping, SIZE).unwrap() };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{
        testing::{attribute, header, message},
        *,
    };
    use crate::Pid;

    /// Reads a context from the memory of this process.
    fn read_own(header: &[u8; 32]) -> Result<Attributes> {
        let memory = Memory::open(Pid(std::process::id())).unwrap();
        read_at(&memory, Addr(header.as_ptr() as u64))
    }

    #[test]
    fn mapping_is_recognized_by_its_name() {
        for (line, expected) in [
            ("7f01-7f02 rw-p 00000000 00:01 1037    /memfd:OTEL_CTX (deleted)\n", true),
            ("7f01-7f02 rw-p 00000000 00:00 0      [anon:OTEL_CTX]\n", true),
            ("7f01-7f02 rw-p 00000000 00:01 1037   [anon_shmem:OTEL_CTX]\n", true),
            ("7f01-7f02 rw-p 00000000 00:00 0      [anon:OTEL_CTX2]\n", false),
            ("7f01-7f02 r--p 00000000 08:01 1037   /srv/ /memfd:OTEL_CTX\n", false),
            ("7f01-7f02 rw-p 00000000 00:00 0\n", false),
            ("", false),
        ] {
            assert_eq!(is_context(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn published_attributes_are_read_from_memory() {
        let payload = message(vec![
            attribute("service.name", Scalar::Text("shop".into())),
            attribute("a.number", Scalar::Int(-7)),
            attribute("a.flag", Scalar::Bool(true)),
            attribute("a.ratio", Scalar::Double(0.5)),
            attribute("empty", Scalar::Text(String::new())),
            KeyValue { key: "nothing".into(), value: None },
        ]);
        let attributes =
            read_own(&header(VERSION, payload.len(), 5, payload.as_ptr() as u64)).unwrap();
        let expected =
            [("a.flag", "true"), ("a.number", "-7"), ("a.ratio", "0.5"), ("service.name", "shop")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(attributes, BTreeMap::from(expected));
    }

    #[test]
    fn invalid_contexts_are_rejected() {
        let payload = message(vec![attribute("a", Scalar::Text("b".into()))]);
        let (size, at) = (payload.len(), payload.as_ptr() as u64);
        assert!(read_own(&header(VERSION, size, 1, at)).is_ok());
        let mut unsigned = header(VERSION, size, 1, at);
        unsigned[7] = b'Y';
        for (what, wrong) in [
            ("signature", unsigned),
            ("version", header(1, size, 1, at)),
            ("being changed", header(VERSION, size, 0, at)),
            ("too large", header(VERSION, MAX_PAYLOAD as usize + 1, 1, at)),
            ("truncated", header(VERSION, size - 1, 1, at)),
            ("not mapped", header(VERSION, size, 1, 16)),
            ("end of the address space", header(VERSION, size, 1, u64::MAX - 2)),
        ] {
            assert!(read_own(&wrong).is_err(), "{what}");
        }
    }

    #[test]
    fn attributes_are_limited_in_number_and_length() {
        let text = || Scalar::Text("v".repeat(5000));
        let many = (0..1000).map(|n| attribute(&format!("k{n}"), text())).collect();
        let attributes = decode(&message(many)).unwrap();
        assert_eq!(attributes.len(), MAX_ATTRIBUTES);
        assert!(attributes.values().all(|value| value.len() == 1024));
        let harmful = decode(&message(vec![attribute("a\nb", Scalar::Text("\u{1b}[m".into()))]));
        let all: Vec<_> = harmful.unwrap().into_iter().collect();
        assert_eq!(all, [("a\\x0ab".to_owned(), "\\x1b[m".to_owned())]);
    }

    /// Returns a nested list: field 5 of a value is a list of values in its field 1.
    fn nested(depth: usize) -> Vec<u8> {
        let field = |tag: u8, bytes: &[u8]| {
            let mut all = vec![tag << 3 | 2];
            prost::encode_length_delimiter(bytes.len(), &mut all).unwrap();
            all.extend_from_slice(bytes);
            all
        };
        let list = (0..depth).fold(Vec::new(), |inner, _| field(5, &field(1, &inner)));
        let pair = [field(1, b"list"), field(2, &list)].concat();
        let text = [field(1, b"after"), field(2, &field(1, b"it"))].concat();
        field(1, &[field(1, &pair), field(1, &text)].concat())
    }

    #[test]
    fn lists_are_skipped_however_deeply_they_are_nested() {
        let attributes = decode(&nested(2000)).unwrap();
        assert_eq!(attributes, BTreeMap::from([("after".to_owned(), "it".to_owned())]));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            header in any::<[u8; 32]>(),
            cut in 0..60_usize,
        ) {
            let _ = (decode(&bytes), Header::parse(&header));
            let valid = message(vec![
                attribute("service.name", Scalar::Text("shop".into())),
                attribute("number", Scalar::Int(7)),
            ]);
            let _ = decode(&valid[..cut.min(valid.len())]);
            let mut changed = valid;
            for (at, byte) in bytes.iter().enumerate().take(3) {
                let at = usize::from(*byte) * (at + 1) % changed.len();
                changed[at] ^= byte;
            }
            let _ = decode(&changed);
        }
    }
}
