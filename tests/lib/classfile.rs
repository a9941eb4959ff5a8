//! Reads class files: the methods of a class, and the calls in their bytecode with line numbers.
//!
//! Names are written as javaprof shows them with `--signatures`: `java.util.Map$Entry`, and
//! parameters as in source code, `(int, java.lang.String[])`. Return types are omitted, so methods
//! that differ only in their return type, such as a method and its bridge, are one method here.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    io::Read,
    path::PathBuf,
    rc::Rc,
};

use cafebabe::{
    ClassFile, MethodAccessFlags, MethodInfo, ParseOptions,
    attributes::{AttributeData, CodeData},
    bytecode::Opcode,
    constant_pool::{BootstrapArgument, MemberRef, NameAndType},
};
use flate2::bufread::DeflateDecoder;
use rawzip::{CompressionMethod, ZipArchive, ZipArchiveEntryWayfinder, ZipSliceArchive};

/// Kind of invoke instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CallKind {
    /// `invokestatic`.
    Static,
    /// `invokespecial`: constructors, `super`, private methods.
    Special,
    /// `invokevirtual`.
    Virtual,
    /// `invokeinterface`.
    Interface,
    /// `invokedynamic`: a bootstrap method determines the callee.
    Dynamic,
}

/// A method as a class file refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// `java.util.List`.
    pub class: String,
    /// `add`.
    pub name: String,
    /// `(int, java.lang.Object)`.
    pub parameters: String,
}

/// A call in a method's bytecode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Source line, 0 without a line number table.
    pub line: u32,
    /// Kind of instruction.
    pub kind: CallKind,
    /// The method that the instruction names. For `invokedynamic`, the class is empty.
    pub target: Target,
}

/// A method with the calls in its bytecode.
#[derive(Clone, Debug)]
pub struct Method {
    /// Its calls.
    pub calls: Vec<Call>,
    /// Lines with `checkcast`, `instanceof` or `aastore`.
    pub type_tests: BTreeSet<u32>,
    /// Access flags: static, private, native and so on.
    pub flags: MethodAccessFlags,
    /// Whether its bytecode has a line number table.
    pub has_lines: bool,
}

impl Method {
    /// Whether the method is not abstract, so that a frame can be in it.
    pub fn is_concrete(&self) -> bool {
        !self.flags.contains(MethodAccessFlags::ABSTRACT)
    }
}

/// A class or an interface.
#[derive(Clone, Debug)]
pub struct Class {
    /// The superclass and the interfaces.
    pub parents: Vec<String>,
    /// Methods by name and parameters, `add(int)`. Methods that differ only in their return type
    /// share a key.
    pub methods: HashMap<String, Vec<Method>>,
    /// Method handles among the arguments of its bootstrap methods: the methods that its lambdas
    /// call.
    pub handles: HashSet<Target>,
}

/// Location of a class file.
#[derive(Clone, Copy, Debug)]
struct Entry {
    jar: usize,
    at: ZipArchiveEntryWayfinder,
    method: CompressionMethod,
}

/// Class files, indexed by class name.
pub struct ClassPath {
    jars: Vec<ZipSliceArchive<Vec<u8>>>,
    /// Locations by class name. A class may have several files, because different class loaders may
    /// load different versions of it.
    index: HashMap<String, Vec<Entry>>,
    classes: RefCell<HashMap<String, Option<Rc<Class>>>>,
    unreadable: RefCell<BTreeSet<String>>,
    /// Direct subclasses and implementers by class.
    children: OnceCell<HashMap<String, Vec<String>>>,
}

impl ClassPath {
    /// Indexes the classes of these jars.
    ///
    /// # Panics
    /// If one cannot be read.
    pub fn new(paths: &[PathBuf]) -> Self {
        let mut jars = Vec::new();
        let mut index: HashMap<String, Vec<Entry>> = HashMap::new();
        for (jar, path) in paths.iter().enumerate() {
            let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let archive = ZipArchive::from_slice(bytes);
            let archive = archive.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let mut entries = archive.entries();
            while let Some(file) = entries.next_entry().expect("the jar is intact") {
                let path = file.file_path();
                let name = std::str::from_utf8(path.as_ref()).ok();
                if let Some(name) = name.and_then(class_of_entry) {
                    let (at, method) = (file.wayfinder(), file.compression_method());
                    index.entry(dotted(name)).or_default().push(Entry { jar, at, method });
                }
            }
            jars.push(archive);
        }
        Self {
            jars,
            index,
            classes: RefCell::default(),
            unreadable: RefCell::default(),
            children: OnceCell::new(),
        }
    }

    /// Returns the number of classes.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no classes.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns a class by its name, merged from all of its files. `None` if there is no file, as
    /// for classes that are generated at run time.
    pub fn class(&self, name: &str) -> Option<Rc<Class>> {
        if let Some(known) = self.classes.borrow().get(name) {
            return known.clone();
        }
        let mut class: Option<Class> = None;
        for bytes in self.files(name) {
            match (Class::parse(&bytes), &mut class) {
                (Ok(other), Some(class)) => class.add(other),
                (Ok(first), None) => class = Some(first),
                (Err(why), _) => {
                    self.unreadable.borrow_mut().insert(format!("{name}: {why}"));
                }
            }
        }
        let class = class.map(Rc::new);
        self.classes.borrow_mut().insert(name.to_owned(), class.clone());
        class
    }

    /// Returns the files that could not be parsed, with the reasons.
    pub fn unreadable(&self) -> Vec<String> {
        self.unreadable.borrow().iter().cloned().collect()
    }

    fn files<'a>(&'a self, name: &str) -> impl Iterator<Item = Vec<u8>> + 'a {
        let entries = self.index.get(name).into_iter().flatten();
        entries.map(|&Entry { jar, at, method }| {
            let entry = self.jars[jar].get_entry(at).expect("the jar is intact");
            if method == CompressionMethod::STORE {
                return entry.data().to_vec();
            }
            let mut bytes = Vec::new();
            let mut reader = entry.verifying_reader(DeflateDecoder::new(entry.data()));
            reader.read_to_end(&mut bytes).expect("the jar is intact");
            bytes
        })
    }

    /// Returns a class with all its superclasses and interfaces, including indirect ones. The
    /// second value is false if the class file of one of them is missing.
    pub fn ancestors(&self, name: &str) -> (HashSet<String>, bool) {
        let (mut all, mut is_complete) = (HashSet::new(), true);
        let mut left = vec![name.to_owned()];
        while let Some(name) = left.pop() {
            if all.contains(&name) {
                continue;
            }
            match self.class(&name) {
                Some(class) => left.extend(class.parents.iter().cloned()),
                None => is_complete = false,
            }
            all.insert(name);
        }
        (all, is_complete)
    }

    /// Whether any class is a subtype of both. On an object of that class, a call through one of the
    /// two types can reach a method of the other.
    pub fn have_common_subtype(&self, one: &str, other: &str) -> bool {
        let of_one = self.descendants(one);
        self.descendants(other).iter().any(|class| of_one.contains(class))
    }

    /// Returns a class with all its direct and indirect subtypes.
    fn descendants<'a>(&'a self, name: &'a str) -> HashSet<&'a str> {
        let children = self.children.get_or_init(|| self.read_children());
        let mut all = HashSet::from([name]);
        let mut left = vec![name];
        while let Some(name) = left.pop() {
            let children = children.get(name).into_iter().flatten();
            left.extend(children.map(String::as_str).filter(|child| all.insert(child)));
        }
        all
    }

    fn read_children(&self) -> HashMap<String, Vec<String>> {
        let mut options = ParseOptions::default();
        options.parse_bytecode(false);
        let mut children: HashMap<String, Vec<String>> = HashMap::new();
        for name in self.index.keys() {
            for bytes in self.files(name) {
                let class = cafebabe::parse_class_with_options(&bytes, &options);
                // Unreadable files are skipped here; `class` records them.
                for parent in class.iter().flat_map(parents) {
                    children.entry(parent).or_default().push(name.clone());
                }
            }
        }
        children
    }
}

/// Returns the class name of a jar entry, also for entries that apply to certain Java versions
/// only.
fn class_of_entry(path: &str) -> Option<&str> {
    let path = match path.strip_prefix("META-INF/versions/") {
        Some(versioned) => versioned.split_once('/')?.1,
        None => path,
    };
    path.strip_suffix(".class")
}

impl Class {
    /// Reads a class file.
    ///
    /// # Errors
    /// A description of what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file = cafebabe::parse_class(bytes).map_err(|e| e.to_string())?;
        let mut methods: HashMap<String, Vec<Method>> = HashMap::new();
        for info in &file.methods {
            let descriptor = info.descriptor.to_string();
            let parameters = parameters(&descriptor).ok_or("not a method descriptor")?;
            methods.entry(info.name.to_string() + &parameters).or_default().push(method(info));
        }
        let mut handles = HashSet::new();
        for attribute in &file.attributes {
            let AttributeData::BootstrapMethods(entries) = &attribute.data else { continue };
            for argument in entries.iter().flat_map(|entry| &entry.arguments) {
                if let BootstrapArgument::MethodHandle(handle) = argument {
                    let (name, descriptor) =
                        (&handle.member_ref.name, &handle.member_ref.descriptor);
                    handles.extend(target(&handle.class_name, name, descriptor));
                }
            }
        }
        Ok(Self { parents: parents(&file), methods, handles })
    }

    /// Merges the contents of another file of the same class.
    fn add(&mut self, other: Self) {
        self.parents.extend(other.parents);
        self.handles.extend(other.handles);
        for (key, methods) in other.methods {
            self.methods.entry(key).or_default().extend(methods);
        }
    }
}

fn parents(file: &ClassFile<'_>) -> Vec<String> {
    let names = file.super_class.iter().chain(&file.interfaces);
    names.map(|name| dotted(name)).collect()
}

fn method(info: &MethodInfo<'_>) -> Method {
    let mut method = Method {
        calls: Vec::new(),
        type_tests: BTreeSet::new(),
        flags: info.access_flags,
        has_lines: false,
    };
    for attribute in &info.attributes {
        if let AttributeData::Code(code) = &attribute.data {
            read_code(code, &mut method);
        }
    }
    method
}

fn read_code(code: &CodeData<'_>, method: &mut Method) {
    let mut lines: Vec<(u16, u16)> = Vec::new();
    for attribute in &code.attributes {
        if let AttributeData::LineNumberTable(entries) = &attribute.data {
            lines.extend(entries.iter().map(|entry| (entry.start_pc, entry.line_number)));
        }
    }
    // Compilers may write the entries in any order.
    lines.sort_by_key(|&(pc, _)| pc);
    method.has_lines = !lines.is_empty();
    let line_at = |pc: usize| {
        let behind = lines.partition_point(|&(from, _)| usize::from(from) <= pc);
        behind.checked_sub(1).map_or(0, |at| u32::from(lines[at].1))
    };
    for (pc, opcode) in code.bytecode.iter().flat_map(|bytecode| &bytecode.opcodes) {
        let line = line_at(*pc);
        let of_member = |member: &MemberRef<'_>| {
            let NameAndType { name, descriptor } = &member.name_and_type;
            target(&member.class_name, name, descriptor)
        };
        let (kind, target) = match opcode {
            Opcode::Invokestatic(member) => (CallKind::Static, of_member(member)),
            Opcode::Invokespecial(member) => (CallKind::Special, of_member(member)),
            Opcode::Invokevirtual(member) => (CallKind::Virtual, of_member(member)),
            Opcode::Invokeinterface(member, _) => (CallKind::Interface, of_member(member)),
            Opcode::Invokedynamic(dynamic) => {
                let NameAndType { name, descriptor } = &dynamic.name_and_type;
                (CallKind::Dynamic, target("", name, descriptor))
            }
            Opcode::Checkcast(_) | Opcode::Instanceof(_) | Opcode::Aastore => {
                method.type_tests.insert(line);
                continue;
            }
            _ => continue,
        };
        method.calls.extend(target.map(|target| Call { line, kind, target }));
    }
}

fn target(class: &str, name: &str, descriptor: &str) -> Option<Target> {
    // A handle may refer to a field, whose descriptor has no parameters.
    let parameters = parameters(descriptor)?;
    // Arrays inherit the methods of Object.
    let class = if class.starts_with('[') { "java.lang.Object".into() } else { dotted(class) };
    Some(Target { class, name: name.to_owned(), parameters })
}

/// Converts an internal class name, which has slashes, to the form that tools show, with dots.
pub fn dotted(name: &str) -> String {
    name.replace('/', ".")
}

/// Returns the parameter types of a method descriptor as in source code.
pub fn parameters(descriptor: &str) -> Option<String> {
    let (mut rest, _) = descriptor.strip_prefix('(')?.split_once(')')?;
    let mut types = Vec::new();
    while !rest.is_empty() {
        let base = rest.trim_start_matches('[');
        let dimensions = rest.len() - base.len();
        let (name, behind) = match base.strip_prefix('L') {
            Some(class) => {
                let (class, behind) = class.split_once(';')?;
                (dotted(class), behind)
            }
            None => (primitive(base.chars().next()?)?.to_owned(), &base[1..]),
        };
        types.push(name + &"[]".repeat(dimensions));
        rest = behind;
    }
    Some(format!("({})", types.join(", ")))
}

fn primitive(letter: char) -> Option<&'static str> {
    const ALL: [(char, &str); 8] = [
        ('Z', "boolean"),
        ('B', "byte"),
        ('C', "char"),
        ('S', "short"),
        ('I', "int"),
        ('J', "long"),
        ('F', "float"),
        ('D', "double"),
    ];
    ALL.into_iter().find(|&(known, _)| known == letter).map(|(_, name)| name)
}
