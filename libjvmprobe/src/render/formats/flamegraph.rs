//! Flame graphs as SVG, by inferno: search, zoom, a hue for each kind of code.

use std::{
    collections::HashSet,
    io::{self, BufRead, Cursor, Write},
};

use inferno::{
    differential,
    flamegraph::{
        self,
        color::{BasicPalette, Color, MultiPalette, Palette, PaletteMap},
    },
};

use crate::render::formats::{Format, Titled, not_one};
use crate::{
    render::formats::folded,
    stack::{Kind, profile::Profile},
};

/// The row of the table.
pub const FORMAT: Format = Format {
    ending: ".svg",
    name: "flame graph",
    draws_differences: true,
    holds_several: false,
    write: |profiles, how, to| {
        let [Titled { profile, title, .. }] = profiles else { return Err(not_one()) };
        let (threads, title) = (how.threads, title.clone());
        let options = folded::Options { threads, mark_kinds: false };
        match how.base {
            Some(base) => write_difference(profile, base.as_bytes(), options, title, to),
            None => write(profile, threads, title, to),
        }
    },
};

/// What stands above the picture.
#[derive(Clone, Debug, Default)]
pub struct Title {
    /// The first line.
    pub title: String,
    /// A second, smaller one.
    pub subtitle: Option<String>,
}

/// Draws a profile.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidData`] for a profile without samples.
pub fn write(profile: &Profile, threads: bool, title: Title, to: impl Write) -> io::Result<()> {
    let lines = folded::lines(profile, folded::Options { threads, mark_kinds: true });
    let mut hues = hues(profile);
    let mut options = options(profile, title);
    options.colors = Palette::Multi(MultiPalette::Java);
    options.palette_map = Some(&mut hues);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), to)
}

/// Draws a profile with frames in red that grew against a base (folded stacks), and
/// in blue those that shrank; the base is scaled to the same number of samples.
///
/// # Errors
/// As for [`write`](fn@write), and those of reading the base.
pub fn write_difference(
    profile: &Profile,
    base: impl BufRead,
    options_of: folded::Options,
    title: Title,
    to: impl Write,
) -> io::Result<()> {
    let after = folded::lines(profile, options_of).join("\n");
    let scaled = differential::Options { normalize: true, strip_hex: false };
    let mut both = Vec::new();
    differential::from_readers(scaled, base, Cursor::new(after), &mut both)?;
    let mut options = options(profile, title);
    flamegraph::from_reader(&mut options, Cursor::new(both), to)
}

fn options(profile: &Profile, title: Title) -> flamegraph::Options<'static> {
    let mut options = flamegraph::Options::default();
    options.title = title.title;
    options.subtitle = title.subtitle;
    options.count_name = profile.measure.counted().into();
    options.colors = Palette::Basic(BasicPalette::Hot);
    options.deterministic = true;
    options
}

/// A colour for each name, by its kind, a little lighter or darker by the name so
/// that neighbours can be told apart.
fn hues(profile: &Profile) -> PaletteMap {
    let mut map = PaletteMap::default();
    let mut seen = HashSet::new();
    for frame in profile.frames() {
        let name = folded::name(frame, folded::Options { threads: false, mark_kinds: true });
        if seen.insert(name.clone()) {
            map.insert(&name, hue(frame.kind, &name));
        }
    }
    map
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
    use crate::stack::profile::Measure;

    fn svg(profile: &Profile) -> String {
        let mut bytes = Vec::new();
        write(profile, false, Title { title: "T & T".into(), subtitle: None }, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn every_frame_is_drawn_with_its_share() {
        let svg = svg(&profile());
        assert!(svg.contains("<title>a.Main.run (5 samples, 83.33%)</title>"), "{svg}");
        assert!(svg.contains("<title>vfs_read (1 samples, 16.67%)</title>"));
        assert!(svg.contains("T &amp; T"));
        let kernel = hue(Kind::Kernel, "vfs_read_[k]");
        assert!(svg.contains(&format!("rgb({},{},{})", kernel.r, kernel.g, kernel.b)));
    }

    #[test]
    fn allocations_are_drawn_in_bytes() {
        let mut profile = profile();
        profile.measure = Measure::Allocation;
        let svg = svg(&profile);
        assert!(svg.contains("<title>a.Main.run (5 bytes, 83.33%)</title>"), "{svg}");
    }

    #[test]
    fn a_difference_is_of_shares() {
        let mut bytes = Vec::new();
        let base = "java;a.Main.main;a.Main.run 60\njava;a.Main.main;vfs_read_[k] 60\n";
        write_difference(
            &profile(),
            base.as_bytes(),
            folded::Options::default(),
            Title::default(),
            &mut bytes,
        )
        .unwrap();
        let svg = String::from_utf8(bytes).unwrap();
        assert!(svg.contains("a.Main.run (5 samples, 83.33%; +33"), "{svg}");
    }
}
