//! Encodes a window as OTLP requests of profiles.

use std::io::Read;

use flate2::read::GzDecoder;
use libjvmprobe::stack::profile::{Measure, Profile, Sample};
use opentelemetry_proto::tonic::{
    collector::profiles::v1development::ExportProfilesServiceRequest,
    profiles::v1development::{
        Profile as Sent, ResourceProfiles, Sample as SentSample, ScopeProfiles, ValueType,
    },
};
use prost::Message;

use crate::{
    metrics::server::gzip,
    push::{
        otlp::{
            dictionary::{Dictionary, used},
            values::{resource, scope},
        },
        queue::{Header, MAX_PARTS, Parts},
        retry::random_bytes,
        samples_of,
    },
    window::{Identity, Window},
};

/// Approximate size at which a request is closed, in bytes before compression. gRPC receivers accept 4 MB.
const TARGET_SIZE: usize = 2 << 20;
/// Maximum length of a request before compression, in bytes. Requests of jvmprobed are less than half as
/// long.
const MAX_BODY: u64 = 64 << 20;

/// Encodes a window as compressed requests.
pub fn requests(window: &Window) -> Parts {
    let mut writer = Writer::new(window.end_ns);
    for jvm in &window.jvms {
        for profile in jvm.profiles.iter().filter(|profile| !profile.samples.is_empty()) {
            writer.add(&jvm.identity, profile);
        }
    }
    writer.close();
    writer.closed
}

/// Type of the values of an OTLP profile. All values of one OTLP profile have the same type.
struct ValueKind {
    name: String,
    unit: &'static str,
    value: fn(&Sample, u64) -> u64,
    /// Type, unit and length of the period.
    period: (String, &'static str, u64),
}

fn kinds(profile: &Profile) -> Vec<ValueKind> {
    let name = profile.measure.name().to_owned();
    let count: fn(&Sample, u64) -> u64 = |sample, _| sample.count;
    let occurrences: fn(&Sample, u64) -> u64 = |sample, _| sample.occurrences;
    let kind =
        |name: &str, unit, value, period| ValueKind { name: name.to_owned(), unit, value, period };
    match profile.measure {
        Measure::Time => {
            let period = (name.clone(), "nanoseconds", 1_000_000_000 / profile.hertz.max(1));
            let time: fn(&Sample, u64) -> u64 =
                |sample, period| sample.count.saturating_mul(period);
            vec![kind(&name, "nanoseconds", time, period)]
        }
        Measure::Allocation => vec![
            kind("alloc_objects", "count", occurrences, ("space".into(), "bytes", 1)),
            kind("alloc_space", "bytes", count, ("space".into(), "bytes", 1)),
        ],
        Measure::Events(_) => vec![kind(&name, "count", count, (name.clone(), "count", 1))],
        Measure::Elapsed(_) => vec![
            kind(&format!("{name}_times"), "count", occurrences, (name.clone(), "nanoseconds", 1)),
            kind(&name, "nanoseconds", count, (name.clone(), "nanoseconds", 1)),
        ],
    }
}

struct Writer {
    closed: Parts,
    header: Header,
    dictionary: Dictionary,
    resources: Vec<ResourceProfiles>,
    /// PID and start time of the JVM of the last resource.
    last: Option<(u32, u64)>,
    size: usize,
}

impl Writer {
    fn new(time_ns: u64) -> Self {
        Self {
            closed: Vec::new(),
            header: Header { time_ns, ..Header::default() },
            dictionary: Dictionary::default(),
            resources: Vec::new(),
            last: None,
            size: 0,
        }
    }

    /// Adds a profile. If the request becomes too long, the rest of the profile goes into further requests.
    fn add(&mut self, identity: &Identity, profile: &Profile) {
        let kinds = kinds(profile);
        let mut rest = &profile.samples[..];
        while !rest.is_empty() {
            self.size += 200;
            let mut profiles: Vec<_> = kinds.iter().map(|kind| self.begin(profile, kind)).collect();
            let mut added = 0;
            for sample in rest {
                self.sample(profile, sample, &kinds, &mut profiles);
                added += 1;
                if self.dictionary.size() + self.size > TARGET_SIZE {
                    break;
                }
            }
            let (fitting, others) = rest.split_at(added);
            rest = others;
            self.header.profiles += profiles.len() as u64;
            let samples = samples_of(&profile.measure, fitting);
            self.header.samples += samples;
            self.push(identity, profiles, samples);
            if self.dictionary.size() + self.size > TARGET_SIZE
                || self.header.parts.len() >= MAX_PARTS
            {
                self.close();
            }
        }
    }

    /// Adds profiles to the resource of their JVM. A request has one resource for each JVM.
    fn push(&mut self, identity: &Identity, profiles: Vec<Sent>, samples: u64) {
        let jvm = Some((identity.pid, identity.started_ns));
        let last = self.resources.last_mut().filter(|_| self.last == jvm);
        let scoped = last.and_then(|resource| resource.scope_profiles.first_mut());
        if let (Some(scoped), Some(part)) = (scoped, self.header.parts.last_mut()) {
            scoped.profiles.extend(profiles);
            *part += samples;
            return;
        }
        self.last = jvm;
        self.header.parts.push(samples);
        let scoped = ScopeProfiles { scope: Some(scope()), profiles, ..ScopeProfiles::default() };
        let resource = resource(identity);
        self.size += resource.encoded_len();
        self.resources.push(ResourceProfiles {
            resource: Some(resource),
            scope_profiles: vec![scoped],
            ..ResourceProfiles::default()
        });
    }

    fn begin(&mut self, profile: &Profile, kind: &ValueKind) -> Sent {
        let (period_type, period_unit, period) = &kind.period;
        let mut value_type = |name: &str, unit: &str| {
            let type_strindex = self.dictionary.string(name);
            ValueType { type_strindex, unit_strindex: self.dictionary.string(unit) }
        };
        Sent {
            sample_type: Some(value_type(&kind.name, kind.unit)),
            period_type: Some(value_type(period_type, period_unit)),
            period: int(*period),
            time_unix_nano: profile.begin_unix_ns,
            duration_nano: profile.duration_ns,
            profile_id: random_bytes::<16>().to_vec(),
            ..Sent::default()
        }
    }

    fn sample(&mut self, profile: &Profile, sample: &Sample, kinds: &[ValueKind], to: &mut [Sent]) {
        let dictionary = &mut self.dictionary;
        let stack = sample.stack.iter().rev();
        let stack = stack.map(|&id| dictionary.location(profile.frame(id))).collect();
        let stack_index = dictionary.stack(stack);
        let mut attribute_indices = Vec::new();
        if !sample.thread.is_empty() {
            attribute_indices.push(dictionary.text_attribute("thread.name", &sample.thread));
        }
        if sample.tid != 0 {
            attribute_indices.push(dictionary.number_attribute("thread.id", sample.tid.into()));
        }
        if let Some(cpu) = sample.cpu {
            attribute_indices.push(dictionary.number_attribute("cpu.logical_number", cpu.into()));
        }
        let link_index = sample.span.map_or(0, |span| dictionary.link(span));
        for (kind, sent) in kinds.iter().zip(to) {
            let value = (kind.value)(sample, kind.period.2);
            let attribute_indices = attribute_indices.clone();
            self.size += 24;
            sent.samples.push(SentSample {
                stack_index,
                attribute_indices,
                link_index,
                values: vec![int(value)],
                ..SentSample::default()
            });
        }
    }

    fn close(&mut self) {
        if self.resources.is_empty() {
            return;
        }
        let request = ExportProfilesServiceRequest {
            resource_profiles: std::mem::take(&mut self.resources),
            dictionary: Some(std::mem::take(&mut self.dictionary).finish()),
        };
        // Writing to memory does not fail.
        if let Ok(zipped) = gzip(&request.encode_to_vec()) {
            self.closed.push((self.header.clone(), zipped));
        }
        (self.header.profiles, self.header.samples, self.size) = (0, 0, 0);
        self.header.parts.clear();
    }
}

/// Splits a request into two halves; `None` if it has only one resource.
pub fn split(header: &Header, zipped: &[u8]) -> Option<Parts> {
    let mut body = Vec::new();
    GzDecoder::new(zipped).take(MAX_BODY).read_to_end(&mut body).ok()?;
    let mut request = ExportProfilesServiceRequest::decode(&*body).ok()?;
    if header.parts.len() < 2 || request.resource_profiles.len() != header.parts.len() {
        return None;
    }
    let (first, second) = header.parts.split_at(header.parts.len() / 2);
    let rest = request.resource_profiles.split_off(first.len());
    let part = |resource_profiles: Vec<ResourceProfiles>, samples: &[u64]| {
        let scopes = resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
        let profiles = scopes.map(|scope| scope.profiles.len() as u64).sum();
        let dictionary = request.dictionary.as_ref().map(|all| used(all, &resource_profiles));
        let request = ExportProfilesServiceRequest { resource_profiles, dictionary };
        Some((header.part(samples, profiles), gzip(&request.encode_to_vec()).ok()?))
    };
    let resources = std::mem::take(&mut request.resource_profiles);
    Some(vec![part(resources, first)?, part(rest, second)?])
}

fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeMap, io::Read, sync::Arc};

    use flate2::read::GzDecoder;
    use libjvmprobe::stack::{Frame, Kind as FrameKind, span::SpanContext};

    use super::*;
    use crate::window::JvmData;

    /// Returns a window of a JVM with this number of samples, each with its own stack.
    pub fn window(samples: u32) -> Window {
        let mut profile = Profile::of(Measure::Time);
        (profile.hertz, profile.duration_ns, profile.begin_unix_ns) = (100, 15_000_000_000, 77);
        let mut main = Frame::new(FrameKind::Java, "app.Main.main");
        (main.file, main.line) = (Some("Main.java".into()), 7);
        let main = profile.intern(main);
        for i in 0..samples {
            let leaf = profile.intern(Frame::new(FrameKind::Kernel, format!("leaf{i}")));
            profile.samples.push(Sample {
                count: 1 + u64::from(i),
                ..Sample::of(7, "main".into(), 8, vec![main, leaf])
            });
        }
        let identity = Identity {
            pid: 7,
            name: "shop".into(),
            attributes: BTreeMap::from([("host.name".into(), "h".into())]),
            ..Identity::default()
        };
        let jvms = vec![JvmData {
            identity: Arc::new(identity),
            profiles: vec![profile],
            ..JvmData::default()
        }];
        Window { begin_ns: 77, end_ns: 15_000_000_077, jvms, ..Window::default() }
    }

    fn decode(zipped: &[u8]) -> ExportProfilesServiceRequest {
        let mut bytes = Vec::new();
        GzDecoder::new(zipped).read_to_end(&mut bytes).unwrap();
        ExportProfilesServiceRequest::decode(&*bytes).unwrap()
    }

    #[test]
    fn request_contains_the_stacks_of_the_window() {
        let requests = requests(&window(3));
        let [(header, body)] = &requests[..] else { panic!("{} requests", requests.len()) };
        assert_eq!((header.profiles, header.samples), (1, 6));
        let request = decode(body);
        let dictionary = request.dictionary.unwrap();
        let sent = &request.resource_profiles[0].scope_profiles[0].profiles[0];
        let text = |at: i32| dictionary.string_table[usize::try_from(at).unwrap()].as_str();
        assert_eq!((dictionary.string_table[0].as_str(), sent.period), ("", 10_000_000));
        assert_eq!(text(sent.sample_type.unwrap().unit_strindex), "nanoseconds");
        let values: Vec<_> = sent.samples.iter().map(|sample| sample.values[0]).collect();
        assert_eq!(values, [10_000_000, 20_000_000, 30_000_000]);
        let stack = &dictionary.stack_table[usize::try_from(sent.samples[1].stack_index).unwrap()];
        let frames: Vec<_> = stack
            .location_indices
            .iter()
            .map(|&at| {
                let line = dictionary.location_table[usize::try_from(at).unwrap()].lines[0];
                let function =
                    dictionary.function_table[usize::try_from(line.function_index).unwrap()];
                (text(function.name_strindex), text(function.filename_strindex), line.line)
            })
            .collect();
        assert_eq!(frames, [("leaf1", "", 0), ("app.Main.main", "Main.java", 7)]);
    }

    #[test]
    fn samples_of_a_span_link_to_it() {
        let mut window = window(3);
        let span = SpanContext::new([7; 16], [9; 8]);
        for sample in &mut window.jvms[0].profiles[0].samples[1..] {
            sample.span = span;
        }
        let request = decode(&requests(&window)[0].1);
        let dictionary = request.dictionary.unwrap();
        let sent = &request.resource_profiles[0].scope_profiles[0].profiles[0];
        let links: Vec<_> = sent.samples.iter().map(|sample| sample.link_index).collect();
        assert_eq!((&links[..], dictionary.link_table.len()), (&[0, 1, 1][..], 2));
        let link = &dictionary.link_table[1];
        assert_eq!((&link.trace_id[..], &link.span_id[..]), (&[7; 16][..], &[9; 8][..]));
        assert!(dictionary.link_table[0].trace_id.is_empty());
    }

    #[test]
    fn long_attributes_do_not_make_a_request_too_long() {
        let mut all = Window::default();
        for pid in 1..=40 {
            let mut jvm = window(1).jvms.remove(0);
            let identity = Arc::make_mut(&mut jvm.identity);
            identity.pid = pid;
            identity.attributes.insert("a".into(), "x".repeat(100_000));
            all.jvms.push(jvm);
        }
        let requests = requests(&all);
        assert!(requests.iter().all(|(_, body)| decode(body).encoded_len() < 3 << 20));
        assert_eq!(requests.iter().map(|(header, _)| header.parts.len()).sum::<usize>(), 40);
    }

    #[test]
    fn long_window_is_split_without_losing_samples() {
        let window = window(100_000);
        let requests = requests(&window);
        assert!(requests.len() > 1);
        let mut sum = 0;
        for (header, body) in &requests {
            let request = decode(body);
            assert!(request.encoded_len() < 4 << 20, "{}", request.encoded_len());
            let samples = &request.resource_profiles[0].scope_profiles[0].profiles[0].samples;
            let values: i64 = samples.iter().map(|sample| sample.values[0] / 10_000_000).sum();
            assert_eq!(values, i64::try_from(header.samples).unwrap());
            sum += header.samples;
        }
        assert_eq!(sum, window.jvms[0].profiles[0].total());
    }
}
