//! Flame graphs as SVG, drawn by inferno: with search, zoom, and a colour for each kind of code.
//!
//! A method is one frame, whether it ran compiled, inlined or in the interpreter. It has the colour of the most
//! frequent kind, and its tooltip shows the share of each kind.

use std::{
    collections::HashMap,
    io::{self, BufRead, Cursor, Write},
};

use inferno::{
    differential,
    flamegraph::{
        self,
        color::{BasicPalette, Color, MultiPalette, Palette, PaletteMap},
    },
};

use crate::{
    render::{
        formats::{Format, FormatOptions, TitledProfile, folded, wrong_profile_count},
        units::percent,
    },
    stack::{Kind, profile::Profile},
};

/// Entry of the format table.
pub const FORMAT: Format = Format {
    ending: ".svg",
    name: "flame graph",
    draws_differences: true,
    holds_several: false,
    shows_times: false,
    has_span_labels: false,
    write: |profiles, format_options, to| {
        let [TitledProfile { profile, title, .. }] = profiles else {
            return Err(wrong_profile_count());
        };
        match format_options.base {
            Some(base) => {
                write_difference(profile, base.as_bytes(), format_options, title.clone(), to)
            }
            None => write(profile, format_options, title.clone(), to),
        }
    },
};

/// Minimum width of a frame in percent, about one pixel of a large window. If narrower frames were drawn,
/// too, browsers could not open the graph of a large program.
const NARROW: f64 = 0.1;

/// Title of a picture.
#[derive(Clone, Debug, Default)]
pub struct Title {
    /// First line.
    pub title: String,
    /// Second line, in smaller letters.
    pub subtitle: Option<String>,
}

/// Draws a profile.
///
/// # Errors
/// The errors of the writer; [`io::ErrorKind::InvalidData`] for a profile without samples.
pub fn write(
    profile: &Profile,
    format_options: &FormatOptions<'_>,
    title: Title,
    mut to: impl Write,
) -> io::Result<()> {
    let lines = folded::lines(profile, options_of(format_options));
    let kinds = Kinds::of(profile);
    let mut hues = kinds.hues();
    let mut options = options(profile, format_options, title);
    options.colors = Palette::Multi(MultiPalette::Java);
    options.palette_map = Some(&mut hues);
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    to.write_all(kinds.add_tooltips(&String::from_utf8_lossy(&svg)).as_bytes())?;
    to.flush()
}

/// Draws the difference between a profile and a base (folded stacks): frames that grew are red, frames that shrank are
/// blue. The base is scaled to the same number of samples.
///
/// # Errors
/// The errors of [`write`](fn@write), and those of reading the base.
pub fn write_difference(
    profile: &Profile,
    base: impl BufRead,
    format_options: &FormatOptions<'_>,
    title: Title,
    to: impl Write,
) -> io::Result<()> {
    let after = folded::lines(profile, options_of(format_options)).join("\n");
    let scaled = differential::Options { normalize: true, strip_hex: false };
    let mut both = Vec::new();
    differential::from_readers(scaled, base, Cursor::new(after), &mut both)?;
    let mut options = options(profile, format_options, title);
    flamegraph::from_reader(&mut options, Cursor::new(both), to)
}

fn options_of(format_options: &FormatOptions<'_>) -> folded::Options {
    folded::Options { threads: format_options.threads, ..Default::default() }
}

fn options(
    profile: &Profile,
    format_options: &FormatOptions<'_>,
    title: Title,
) -> flamegraph::Options<'static> {
    let mut options = flamegraph::Options::default();
    options.title = title.title;
    options.subtitle = title.subtitle;
    options.count_name = profile.measure.unit().into();
    options.colors = Palette::Basic(BasicPalette::Hot);
    options.deterministic = true;
    options.min_width = if format_options.keep_narrow { 0.0 } else { NARROW };
    options
}

/// Count of each method by kind of code, largest first.
struct Kinds(HashMap<String, Vec<(Kind, u64)>>);

impl Kinds {
    fn of(profile: &Profile) -> Self {
        let mut of_frames = vec![0_u64; profile.frames().len()];
        for sample in &profile.samples {
            for &id in &sample.stack {
                let sum = &mut of_frames[id as usize];
                *sum = sum.saturating_add(sample.count);
            }
        }
        let mut kinds: HashMap<String, Vec<(Kind, u64)>> = HashMap::new();
        for (frame, count) in profile.frames().iter().zip(of_frames) {
            let kinds = kinds.entry(frame.folded()).or_default();
            match kinds.iter_mut().find(|(kind, _)| *kind == frame.kind) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => kinds.push((frame.kind, count)),
            }
        }
        kinds.values_mut().for_each(|kinds| kinds.sort_by(|a, b| (b.1, a.0).cmp(&(a.1, b.0))));
        Self(kinds)
    }

    /// Returns a colour for each method. The brightness varies with the name, so that neighbours can be distinguished.
    fn hues(&self) -> PaletteMap {
        let mut map = PaletteMap::default();
        for (name, kinds) in &self.0 {
            if let Some((kind, _)) = kinds.first() {
                map.insert(name, hue(*kind, name));
            }
        }
        map
    }

    /// Adds the shares of kinds to the tooltips of methods that have several kinds.
    fn add_tooltips(&self, svg: &str) -> String {
        let several: HashMap<_, _> = self.0.iter().filter(|(_, kinds)| kinds.len() > 1).collect();
        let mut output = String::with_capacity(svg.len());
        for (i, part) in svg.split("<title>").enumerate() {
            if i > 0 {
                output.push_str("<title>");
            }
            // Format: `a.Main.run (5 samples, 83.33%)</title>...`
            let head = part.split("</title>").next().unwrap_or_default();
            let kinds = head.rsplit_once(" (").and_then(|(name, _)| several.get(&unescaped(name)));
            match (kinds, head.strip_suffix(')')) {
                (Some(kinds), Some(open)) => {
                    let all: u64 = kinds.iter().map(|(_, count)| count).sum();
                    let share = |(kind, count): &(Kind, u64)| {
                        let share = percent(*count as f64, all as f64);
                        format!("{} {share}", tooltip_name(*kind))
                    };
                    let shares: Vec<_> = kinds.iter().map(share).collect();
                    output.push_str(&format!(
                        "{open}; {}){}",
                        shares.join(", "),
                        &part[head.len()..]
                    ));
                }
                _ => output.push_str(part),
            }
        }
        output
    }
}

/// Decodes the XML entities of a name.
fn unescaped(text: &str) -> String {
    let marks = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    marks.iter().fold(text.to_owned(), |text, (mark, plain)| text.replace(mark, plain))
}

/// Returns the name of a kind in tooltips.
fn tooltip_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Java => "compiled",
        Kind::Inlined => "inlined",
        Kind::Interpreted => "interpreted",
        Kind::Stub => "stub",
        Kind::Jvm => "JVM",
        Kind::Native => "native",
        Kind::Kernel => "kernel",
        Kind::Class => "class",
        Kind::Unknown => "unknown",
    }
}

fn hue(kind: Kind, name: &str) -> Color {
    let (r, g, b): (u8, u8, u8) = match kind {
        Kind::Java => (90, 200, 90),
        Kind::Inlined => (80, 200, 200),
        Kind::Interpreted => (160, 200, 120),
        Kind::Stub => (120, 160, 220),
        Kind::Jvm => (215, 195, 65),
        Kind::Native => (230, 95, 85),
        Kind::Kernel => (240, 150, 50),
        Kind::Class => (200, 140, 220),
        Kind::Unknown => (160, 160, 160),
    };
    let sum = name.bytes().fold(7_u32, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
    let shade = (sum % 30) as u8;
    Color { r: r.saturating_sub(shade), g: g.saturating_sub(shade), b: b.saturating_sub(shade) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::formats::folded::tests::profile;
    use crate::stack::Frame;

    fn svg(profile: &Profile) -> String {
        let mut bytes = Vec::new();
        let title = Title { title: "T & T".into(), subtitle: None };
        write(profile, &FormatOptions::default(), title, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn interpreted_and_compiled_frames_of_a_method_merge() {
        let mut profile = profile();
        let compiled = profile.intern(Frame::new(Kind::Java, "a.Main.<run>"));
        let slow = profile.intern(Frame::new(Kind::Interpreted, "a.Main.<run>"));
        profile.samples[0].stack[1] = compiled;
        profile.samples[1].stack[1] = slow;
        let svg = svg(&profile);
        let title = "<title>a.Main.&lt;run&gt; (5 samples, 83.33%; interpreted 60.00 %, compiled \
                     40.00 %)</title>";
        assert!(svg.contains(title), "{svg}");
        let slow = hue(Kind::Interpreted, "a.Main.<run>");
        assert!(svg.contains(&format!("rgb({},{},{})", slow.r, slow.g, slow.b)));
    }

    #[test]
    fn narrow_frames_are_omitted_unless_requested() {
        let mut profile = profile();
        profile.samples[0].count = 5000;
        assert!(!svg(&profile).contains("vfs_read"));
        let (mut bytes, format_options) =
            (Vec::new(), FormatOptions { keep_narrow: true, ..FormatOptions::default() });
        write(&profile, &format_options, Title::default(), &mut bytes).unwrap();
        assert!(String::from_utf8(bytes).unwrap().contains("<title>vfs_read (1 samples"));
    }

    #[test]
    fn difference_compares_shares_instead_of_counts() {
        let mut bytes = Vec::new();
        let base = "java;a.Main.main;a.Main.run 60\njava;a.Main.main;vfs_read_[k] 60\n";
        write_difference(
            &profile(),
            base.as_bytes(),
            &FormatOptions::default(),
            Title::default(),
            &mut bytes,
        )
        .unwrap();
        let svg = String::from_utf8(bytes).unwrap();
        assert!(svg.contains("a.Main.run (5 samples, 83.33%; +33"), "{svg}");
    }
}
