//! One page that shows profiles: a single HTML file that needs no network and no server.
//!
//! | file | what it is |
//! |---|---|
//! | `data`, `names`, `packed` | the profiles as JSON |
//! | `page.html`, `page.css` | what stands where, and how it looks |
//! | `words.js` | numbers, names and colours |
//! | `model.js` | the data, read |
//! | `trees.js` | what is chosen of it, added up |
//! | `callers.js` | the same the other way round, as far as it is looked at |
//! | `graph.js` | towers: flame graph, icicle, callers |
//! | `axis.js` | the time axis |
//! | `lists.js` | the table of methods; threads and kinds of code to be left out |
//! | `page.js` | what is chosen, and who has to draw it again |
//!
//! Names in a profile are chosen by whoever runs the program. They reach the page as JSON in which
//! no `<` stands, and the screen as text of nodes or of a canvas, never as markup. The page's
//! policy (Content-Security-Policy) lets it run and look like these files alone, by their hashes,
//! and load nothing.

use std::{
    io::{self, Write},
    sync::LazyLock,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

use self::data::Data;
use crate::{
    names::clean,
    render::formats::{Format, How, Titled},
};

mod data;
mod names;
mod packed;

/// The row of the table.
pub const FORMAT: Format = Format {
    ending: ".html",
    name: "page",
    draws_differences: true,
    holds_several: true,
    shows_times: true,
    write,
};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("words.js"),
    include_str!("model.js"),
    include_str!("trees.js"),
    include_str!("callers.js"),
    include_str!("graph.js"),
    include_str!("axis.js"),
    include_str!("lists.js"),
    include_str!("page.js"),
    "})();\n"
);

/// What the page may do: nothing but to run its script and to have its style.
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
fn write(profiles: &[Titled<'_>], how: &How<'_>, to: &mut dyn Write) -> io::Result<()> {
    let data = Data::of(profiles, how);
    let json = serde_json::to_string(&data)?;
    // In JSON it stands in strings only. An element of data ends where `</script` is read.
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
