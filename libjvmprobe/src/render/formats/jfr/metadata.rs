//! The metadata event, which describes the types to readers: a list of texts, and a tree of elements that refers to
//! them.
//!
//! Source: jdk.jfr.internal.MetadataWriter and MetadataReader.

use std::collections::HashMap;

use super::{
    encode::Buffer,
    types::{
        self, CATEGORY, CONTENT_TYPE, DATA_AMOUNT, Family, Field, LABEL, MEMORY_ADDRESS,
        PERCENTAGE, TIMESPAN, TIMESTAMP, Type, TypeId, UNSIGNED, Unit,
    },
};

/// Number of the metadata. The JDK uses small numbers for the types that it knows itself, and does not read metadata
/// again whose number it has seen before.
const METADATA_ID: u64 = 0x7fff_ffff;

/// An element of the tree.
#[derive(Debug, Default)]
struct Element {
    name: &'static str,
    attributes: Vec<(String, String)>,
    children: Vec<Self>,
}

impl Element {
    fn new(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    fn annotation(of: TypeId) -> Self {
        Self::new("annotation").with("class", of.0.to_string())
    }

    fn of_type(of: &Type) -> Self {
        let mut element = Self::new("class").with("name", of.name).with("id", of.id.0.to_string());
        let (is_simple, super_type) = match of.family {
            Family::Value => (false, None),
            Family::Simple => (true, None),
            Family::Annotation | Family::ContentType => {
                (false, Some("java.lang.annotation.Annotation"))
            }
            Family::Event => (false, Some("jdk.jfr.Event")),
        };
        if is_simple {
            element = element.with("simpleType", "true");
        }
        if let Some(super_type) = super_type {
            element = element.with("superType", super_type);
        }
        if !of.label.is_empty() {
            element.children.push(Self::annotation(LABEL).with("value", of.label));
        }
        if of.family == Family::ContentType {
            element.children.push(Self::annotation(CONTENT_TYPE));
        }
        if !of.category.is_empty() {
            let names = of.category.iter().enumerate();
            let category = names.fold(Self::annotation(CATEGORY), |category, (at, name)| {
                category.with(format!("value-{at}"), *name)
            });
            element.children.push(category);
        }
        element.children.extend(of.fields.iter().map(Self::of_field));
        element
    }

    fn of_field(of: &Field) -> Self {
        let mut element =
            Self::new("field").with("name", of.name).with("class", of.of.0.to_string());
        let (annotations, value): (&[TypeId], _) = match of.unit {
            Unit::Plain => (&[], ""),
            Unit::Constant => {
                element = element.with("constantPool", "true");
                (&[], "")
            }
            Unit::List => {
                element = element.with("dimension", "1");
                (&[], "")
            }
            Unit::Unsigned => (&[UNSIGNED], ""),
            Unit::Share => (&[PERCENTAGE], ""),
            Unit::Address => (&[UNSIGNED, MEMORY_ADDRESS], ""),
            Unit::Bytes => (&[UNSIGNED, DATA_AMOUNT], "BYTES"),
            Unit::Time => (&[TIMESTAMP], "TICKS"),
            Unit::TimeMillis => (&[TIMESTAMP], "MILLISECONDS_SINCE_EPOCH"),
            Unit::Duration => (&[TIMESPAN], "TICKS"),
        };
        if !of.label.is_empty() {
            element.children.push(Self::annotation(LABEL).with("value", of.label));
        }
        element.children.extend(annotations.iter().map(|&annotation| match annotation {
            UNSIGNED | MEMORY_ADDRESS | PERCENTAGE => Self::annotation(annotation),
            _ => Self::annotation(annotation).with("value", value),
        }));
        element
    }
}

/// Texts of the elements, each once.
#[derive(Default)]
struct Texts {
    numbers: HashMap<String, u64>,
    all: Buffer,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.numbers.len() as u64;
        self.numbers.insert(text.to_owned(), number);
        self.all.text(text);
        number
    }

    fn write(&mut self, element: &Element, to: &mut Buffer) {
        to.number(self.number(element.name));
        to.number(element.attributes.len() as u64);
        for (name, value) in &element.attributes {
            to.number(self.number(name));
            to.number(self.number(value));
        }
        to.number(element.children.len() as u64);
        element.children.iter().for_each(|child| self.write(child, to));
    }
}

/// Writes the metadata event of a chunk that begins at `start`, in ticks.
pub(super) fn write(start: u64, to: &mut Buffer) {
    let mut root = Element::new("root");
    let mut metadata = Element::new("metadata");
    metadata.children.extend(types::all().map(Element::of_type));
    root.children.push(metadata);
    root.children.push(Element::new("region").with("locale", "en_US").with("gmtOffset", "0"));
    let (mut texts, mut tree) = (Texts::default(), Buffer::default());
    texts.write(&root, &mut tree);
    to.event(|to| {
        // The type of this event, and its duration.
        to.number(0);
        to.number(start);
        to.number(0);
        to.number(METADATA_ID);
        to.number(texts.numbers.len() as u64);
        to.raw(texts.all.bytes());
        to.raw(tree.bytes());
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn fields_have_known_types_and_identifiers_are_unique() {
        let count = types::all().count();
        let ids: HashSet<_> = types::all().map(|of| of.id).collect();
        let names: HashSet<_> = types::all().map(|of| of.name).collect();
        assert_eq!((ids.len(), names.len()), (count, count));
        for of in types::all() {
            for field in of.fields {
                assert!(ids.contains(&field.of), "{}.{}", of.name, field.name);
            }
        }
    }
}
