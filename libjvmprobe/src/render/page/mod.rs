//! Profiles as an interactive page: a single HTML file that needs no network and no server.
//!
//! | file | contents |
//! |---|---|
//! | `data`, `names`, `packed` | the profiles as JSON |
//! | `page.html`, `page.css` | layout and style |
//! | `format.js` | formats of numbers and names, and colours |
//! | `model.js` | reads the data |
//! | `trees.js` | sums of the selected samples: call tree, methods |
//! | `callers.js` | caller tree, expanded on demand |
//! | `graph.js` | drawing of trees: flame graph, icicle, callers |
//! | `axis.js` | time axis |
//! | `lists.js` | table of methods; filters by thread and kind of code |
//! | `page.js` | current selection, and updates of all parts |
//!
//! The owner of the profiled program controls the names of methods and threads. Names enter the page as JSON
//! without any `<`, and are displayed as text nodes or on a canvas, never as markup. The page's policy
//! (Content-Security-Policy) permits only the page's own script and style, by their hashes, and forbids
//! loading anything.

use std::{
    io::{self, Write},
    sync::LazyLock,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

use self::data::Data;
use crate::{
    names::clean,
    render::formats::{Format, FormatOptions, TitledProfile},
};

mod data;
mod names;
mod packed;

/// Entry of the format table.
pub const FORMAT: Format = Format {
    ending: ".html",
    name: "page",
    draws_differences: true,
    holds_several: true,
    shows_times: true,
    has_span_labels: false,
    write,
};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("format.js"),
    include_str!("model.js"),
    include_str!("trees.js"),
    include_str!("callers.js"),
    include_str!("graph.js"),
    include_str!("axis.js"),
    include_str!("lists.js"),
    include_str!("page.js"),
    "})();\n"
);

/// Content-Security-Policy of the page: permits only its own script and style.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// Writes a page with profiles.
fn write(
    profiles: &[TitledProfile<'_>],
    options: &FormatOptions<'_>,
    to: &mut dyn Write,
) -> io::Result<()> {
    let data = Data::of(profiles, options);
    let json = serde_json::to_string(&data)?;
    // In JSON, `<` occurs only in strings. It is escaped, so that no string can end the data element by
    // `</script`.
    let json = clean::json(&json).replace('<', "\\u003c");
    let title = profiles.first().map_or("", |titled| &titled.title.title);
    let mut rest = PAGE;
    for (mark, text) in [
        ("{{policy}}", &**POLICY),
        ("{{title}}", &escaped(&clean::line(title))),
        ("{{style}}", STYLE),
        ("{{data}}", &json),
        ("{{script}}", SCRIPT),
    ] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        to.write_all(before.as_bytes())?;
        to.write_all(text.as_bytes())?;
        rest = after;
    }
    to.write_all(rest.as_bytes())?;
    to.flush()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
