//! Keys of a set that is backed by a `ConcurrentHashMap`.
//!
//! Source: java/util/concurrent/ConcurrentHashMap.java. The map has a table, and each entry of the table
//! refers to a list or a tree of nodes. While the map grows, it has a second, larger table. When the nodes of
//! an entry have been moved to the larger table, a `ForwardingNode` replaces them in the smaller one. The
//! nodes of a tree are linked as a list, too, and are read as a list here.

use std::{collections::HashSet, time::Instant};

use super::classes::Map;
use crate::{
    Addr, Result,
    hotspot::{
        loaded::at,
        pages::{PAGE, Pages},
        references::{Elements, References},
    },
};

/// Maximum number of tables of a map that are read. A map usually has one table, and two while it grows.
const MAX_TABLES: usize = 4;
/// Maximum number of entries of a table.
const MAX_TABLE: u32 = 1 << 22;
/// Number of nodes that are read together.
const AT_ONCE: usize = 256;
/// Number of pages of a table that are read together.
const PAGES_AT_ONCE: usize = 64;

/// A node, decoded.
#[derive(Clone, Copy, Debug)]
enum Node {
    Entry {
        key: Option<Addr>,
        next: Option<Addr>,
    },
    /// The head of a tree, with the address of the tree's first node.
    Tree(Option<Addr>),
    /// A `ForwardingNode`, with the address of the larger table.
    Table(Option<Addr>),
    Other,
}

/// Returns the keys of a set, and whether all nodes were read. Stops when it has read `max` keys.
///
/// # Errors
/// [`crate::Error::Memory`] if the set or its table cannot be read.
pub(super) fn keys(
    pages: &mut Pages<'_>,
    references: &mut References,
    map: &Map,
    set: Addr,
    (max, until): (usize, Instant),
) -> Result<(Vec<Addr>, bool)> {
    let Some(own) = references.read_reference(pages, set, map.of_view)? else {
        return Ok((Vec::new(), true));
    };
    let mut tables: Vec<_> =
        references.read_reference(pages, own, map.table)?.into_iter().collect();
    let (mut done, mut seen) = (HashSet::new(), HashSet::new());
    let (mut keys, mut is_complete) = (Vec::new(), true);
    while let Some(table) = tables.pop() {
        if !done.insert(table) {
            continue;
        }
        if done.len() > MAX_TABLES {
            return Ok((keys, false));
        }
        let mut nodes = entries(pages, references, table, until)?;
        while !nodes.is_empty() {
            // Nodes that were created one after another are often on the same page. If they are sorted by
            // address, the nodes of a page are read together.
            nodes.sort_unstable();
            let mut next = Vec::new();
            for some in nodes.chunks(AT_ONCE) {
                if Instant::now() >= until || keys.len() >= max || seen.len() / 2 > max {
                    return Ok((keys, false));
                }
                let read = pages
                    .read_batched(some, |pages, &node| self::node(pages, references, map, node));
                for node in read {
                    match node {
                        Ok(Node::Entry { key, next: more }) => {
                            keys.extend(key);
                            next.extend(more.filter(|&node| seen.insert(node)));
                        }
                        Ok(Node::Tree(first)) => {
                            next.extend(first.filter(|&node| seen.insert(node)));
                        }
                        Ok(Node::Table(table)) => {
                            tables.extend(table.filter(|t| !done.contains(t)))
                        }
                        Ok(Node::Other) | Err(_) => is_complete = false,
                    }
                }
                tables.dedup();
            }
            nodes = next;
        }
    }
    Ok((keys, is_complete))
}

/// Reads the entries of a table that are not null.
fn entries(
    pages: &mut Pages<'_>,
    references: &mut References,
    table: Addr,
    until: Instant,
) -> Result<Vec<Addr>> {
    let array = references.object(pages, table)?;
    let width = references.width() as u64;
    let Some(Elements { begin, log2, length }) = array.elements() else { return Ok(Vec::new()) };
    if 1 << log2 != width || length > MAX_TABLE {
        return Ok(Vec::new());
    }
    let mut nodes = Vec::new();
    let per_read = (PAGES_AT_ONCE * PAGE) as u64 / width;
    let mut index = 0;
    while index < u64::from(length) && Instant::now() < until {
        let end = u64::from(length).min(index + per_read);
        let first = at(table, begin + index * width)?;
        let bytes = (end - index) * width;
        pages.prefetch((0..=bytes).step_by(PAGE).filter_map(|offset| first.checked_add(offset)));
        for index in index..end {
            nodes.extend(references.read_reference(pages, table, begin + index * width)?);
        }
        index = end;
    }
    Ok(nodes)
}

fn node(pages: &mut Pages<'_>, references: &References, map: &Map, node: Addr) -> Result<Node> {
    let klass = references.class_of(pages, node)?;
    let special = |class: Option<(Addr, u64)>| {
        class.filter(|&(special, _)| special == klass).map(|(_, field)| field)
    };
    if let Some(first) = special(map.bin) {
        return references.read_reference(pages, node, first).map(Node::Tree);
    }
    if let Some(table) = special(map.forwarding) {
        return references.read_reference(pages, node, table).map(Node::Table);
    }
    // The nodes of trees and reservations are instances of subclasses of the class of nodes. A reservation
    // has no key.
    let key = references.read_reference(pages, node, map.key);
    let next = references.read_reference(pages, node, map.next);
    let (key, next) = (key?, next?);
    if key.is_none() && klass != map.node {
        return Ok(Node::Other);
    }
    Ok(Node::Entry { key, next })
}
