//! Dictionary that the profiles of a request share: strings, frames, stacks and attributes, each written once.

use std::hash::Hash;

use indexmap::IndexSet;
use libjvmprobe::stack::{Frame, Kind, span::SpanContext};
use opentelemetry_proto::tonic::{
    common::v1::any_value::Value,
    profiles::v1development::{
        Function, KeyValueAndUnit, Line, Link, Location, Mapping, ProfilesDictionary,
        ResourceProfiles, Stack,
    },
};

use crate::push::otlp::values::{any, text};

/// Returns the number of an element, and whether it is new.
fn number<T: Hash + Eq>(table: &mut IndexSet<T>, element: T) -> (i32, bool) {
    let (at, is_new) = table.insert_full(element);
    // A request is closed long before it has 2^31 elements.
    (i32::try_from(at).unwrap_or(i32::MAX), is_new)
}

/// An attribute of a sample or a frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Attribute {
    None,
    Text(i32, String),
    Number(i32, i64),
}

/// A frame: number of the function, source line, number of the mapping, and number of the attribute with the
/// type of the frame.
type LocationKey = (i32, u32, i32, i32);

/// The dictionary of one request. Each table begins with the null element, which has number 0.
#[derive(Debug)]
pub struct Dictionary {
    strings: IndexSet<String>,
    /// Functions, each as the numbers of its name and of its file in `strings`.
    functions: IndexSet<(i32, i32)>,
    mappings: IndexSet<i32>,
    locations: IndexSet<LocationKey>,
    stacks: IndexSet<Vec<i32>>,
    attributes: IndexSet<Attribute>,
    links: IndexSet<Option<SpanContext>>,
    size: usize,
}

impl Default for Dictionary {
    fn default() -> Self {
        Self {
            strings: IndexSet::from([String::new()]),
            functions: IndexSet::from([(0, 0)]),
            mappings: IndexSet::from([0]),
            locations: IndexSet::from([(0, 0, 0, 0)]),
            stacks: IndexSet::from([Vec::new()]),
            attributes: IndexSet::from([Attribute::None]),
            links: IndexSet::from([None]),
            size: 0,
        }
    }
}

impl Dictionary {
    /// Returns the approximate size of the dictionary before compression, in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of a string.
    pub fn string(&mut self, text: &str) -> i32 {
        let (id, is_new) = number(&mut self.strings, text.to_owned());
        self.size += if is_new { text.len() + 2 } else { 0 };
        id
    }

    /// Returns the number of a frame.
    pub fn location(&mut self, frame: &Frame) -> i32 {
        let name = self.string(&frame.name);
        let file = frame.file.as_deref().map_or(0, |file| self.string(file));
        let (function, is_new) = number(&mut self.functions, (name, file));
        self.size += if is_new { 12 } else { 0 };
        let mapping = match frame.module.as_deref() {
            None => 0,
            Some(module) => {
                let name = self.string(module);
                number(&mut self.mappings, name).0
            }
        };
        let kind = self.text_attribute("profile.frame.type", frame_type(frame.kind));
        let (id, is_new) = number(&mut self.locations, (function, frame.line, mapping, kind));
        self.size += if is_new { 16 } else { 0 };
        id
    }

    /// Returns the number of a stack, which begins with the innermost frame.
    pub fn stack(&mut self, locations: Vec<i32>) -> i32 {
        let length = locations.len();
        let (id, is_new) = number(&mut self.stacks, locations);
        self.size += if is_new { 3 * length + 4 } else { 0 };
        id
    }

    /// Returns the number of an attribute with a string value.
    pub fn text_attribute(&mut self, name: &str, value: &str) -> i32 {
        let name = self.string(name);
        let (id, is_new) = number(&mut self.attributes, Attribute::Text(name, value.to_owned()));
        self.size += if is_new { value.len() + 10 } else { 0 };
        id
    }

    /// Returns the number of an attribute with an integer value.
    pub fn number_attribute(&mut self, name: &str, value: i64) -> i32 {
        let name = self.string(name);
        let (id, is_new) = number(&mut self.attributes, Attribute::Number(name, value));
        self.size += if is_new { 14 } else { 0 };
        id
    }

    /// Returns the number of a link to a span.
    pub fn link(&mut self, span: SpanContext) -> i32 {
        let (id, is_new) = number(&mut self.links, Some(span));
        self.size += if is_new { 30 } else { 0 };
        id
    }

    /// Returns the dictionary as it is sent.
    pub fn finish(self) -> ProfilesDictionary {
        let function = |(name_strindex, filename_strindex)| Function {
            name_strindex,
            system_name_strindex: name_strindex,
            filename_strindex,
            start_line: 0,
        };
        let location = |(function_index, line, mapping_index, kind): LocationKey| Location {
            mapping_index,
            address: 0,
            // The null element has no lines.
            lines: (function_index != 0)
                .then_some(Line { function_index, line: line.into(), column: 0 })
                .into_iter()
                .collect(),
            attribute_indices: (kind != 0).then_some(kind).into_iter().collect(),
        };
        let attribute = |attribute| match attribute {
            Attribute::None => KeyValueAndUnit::default(),
            Attribute::Text(key_strindex, value) => {
                KeyValueAndUnit { key_strindex, value: Some(any(text(&value))), unit_strindex: 0 }
            }
            Attribute::Number(key_strindex, value) => {
                let value = Some(any(Value::IntValue(value)));
                KeyValueAndUnit { key_strindex, value, unit_strindex: 0 }
            }
        };
        let link = |span: Option<SpanContext>| {
            span.map_or_else(Link::default, |span| Link {
                trace_id: span.trace_id().to_vec(),
                span_id: span.span_id().to_vec(),
            })
        };
        let mapping = |filename_strindex| Mapping { filename_strindex, ..Mapping::default() };
        ProfilesDictionary {
            mapping_table: self.mappings.into_iter().map(mapping).collect(),
            location_table: self.locations.into_iter().map(location).collect(),
            function_table: self.functions.into_iter().map(function).collect(),
            link_table: self.links.into_iter().map(link).collect(),
            string_table: self.strings.into_iter().collect(),
            attribute_table: self.attributes.into_iter().map(attribute).collect(),
            stack_table: self
                .stacks
                .into_iter()
                .map(|location_indices| Stack { location_indices })
                .collect(),
        }
    }
}

/// Set of the used entries of a table.
struct Used(Vec<bool>);

impl Used {
    fn new<T>(table: &[T]) -> Self {
        Self(vec![false; table.len()])
    }

    fn add(&mut self, index: i32) {
        if let Some(used) = usize::try_from(index).ok().and_then(|at| self.0.get_mut(at)) {
            *used = true;
        }
    }

    fn of<'a, T>(&'a self, table: &'a [T]) -> impl Iterator<Item = &'a T> {
        table.iter().zip(&self.0).filter_map(|(entry, used)| used.then_some(entry))
    }

    /// Returns the table with defaults in place of unused entries, so that indices stay valid.
    fn keep<T: Clone + Default>(&self, table: &[T]) -> Vec<T> {
        let entry = |(entry, used): (&T, &bool)| if *used { entry.clone() } else { T::default() };
        let last = self.0.iter().rposition(|used| *used).map_or(0, |at| at);
        table.iter().zip(&self.0).take(last + 1).map(entry).collect()
    }
}

/// Returns the part of a dictionary to which the given profiles refer. Indices stay valid.
pub fn used(all: &ProfilesDictionary, profiles: &[ResourceProfiles]) -> ProfilesDictionary {
    let (mut strings, mut stacks) = (Used::new(&all.string_table), Used::new(&all.stack_table));
    let mut attributes = Used::new(&all.attribute_table);
    let mut links = Used::new(&all.link_table);
    let mut locations = Used::new(&all.location_table);
    let mut functions = Used::new(&all.function_table);
    let mut mappings = Used::new(&all.mapping_table);
    let scopes = profiles.iter().flat_map(|resource| &resource.scope_profiles);
    for profile in scopes.flat_map(|scope| &scope.profiles) {
        for kind in profile.sample_type.iter().chain(&profile.period_type) {
            strings.add(kind.type_strindex);
            strings.add(kind.unit_strindex);
        }
        profile.attribute_indices.iter().for_each(|&at| attributes.add(at));
        for sample in &profile.samples {
            stacks.add(sample.stack_index);
            links.add(sample.link_index);
            sample.attribute_indices.iter().for_each(|&at| attributes.add(at));
        }
    }
    for stack in stacks.of(&all.stack_table) {
        stack.location_indices.iter().for_each(|&at| locations.add(at));
    }
    for location in locations.of(&all.location_table) {
        mappings.add(location.mapping_index);
        location.lines.iter().for_each(|line| functions.add(line.function_index));
        location.attribute_indices.iter().for_each(|&at| attributes.add(at));
    }
    for function in functions.of(&all.function_table) {
        strings.add(function.name_strindex);
        strings.add(function.system_name_strindex);
        strings.add(function.filename_strindex);
    }
    mappings.of(&all.mapping_table).for_each(|mapping| strings.add(mapping.filename_strindex));
    for attribute in attributes.of(&all.attribute_table) {
        strings.add(attribute.key_strindex);
        strings.add(attribute.unit_strindex);
    }
    ProfilesDictionary {
        mapping_table: mappings.keep(&all.mapping_table),
        location_table: locations.keep(&all.location_table),
        function_table: functions.keep(&all.function_table),
        link_table: links.keep(&all.link_table),
        string_table: strings.keep(&all.string_table),
        attribute_table: attributes.keep(&all.attribute_table),
        stack_table: stacks.keep(&all.stack_table),
    }
}

/// Returns the value of `profile.frame.type` in OpenTelemetry's semantic conventions.
fn frame_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Java | Kind::Inlined | Kind::Interpreted | Kind::Stub | Kind::Class => "jvm",
        Kind::Jvm | Kind::Native | Kind::Unknown => "native",
        Kind::Kernel => "kernel",
    }
}
