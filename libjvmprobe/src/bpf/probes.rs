//! Attaches programs to instants in the life of a JVM, by probes in its libjvm.so.
//!
//! HotSpot marks an instant by a USDT probe. In builds without `.note.stapsdt`, the function that would contain the
//! probe is used instead. An [`Instant`] describes the probe and the function; [`resolve`] determines which
//! of the two a file offers.

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::HashSet,
    fmt,
    fs::File,
    io,
    mem::take,
    os::{fd::RawFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use libbpf_rs::{ErrorKind, Link, ProgramMut, UprobeOpts, UsdtOpts};

use crate::{
    Error, FileOffset, Pid, Result,
    bpf::{
        self,
        detach::{self, Object},
        inodes::CountedFile,
    },
    elf::{ElfFile, Probes, Symbols, separate_debug_file::debug_package, symbols::Symbol},
    process::{self, LibJvm},
};

/// An instant in the life of a JVM, and the programs that can observe it.
#[derive(Clone, Copy, Debug)]
pub struct Instant {
    /// USDT provider and probe name.
    pub usdt: (&'static str, &'static str),
    /// The program for the USDT probe.
    pub usdt_program: &'static str,
    /// Functions that can replace the probe. Each element is a set of functions, given by the beginnings of
    /// their mangled names. The first set whose functions all exist is used.
    pub functions: &'static [&'static [&'static str]],
    /// The program for the entry of each function of the set.
    pub function_program: &'static str,
}

impl Instant {
    /// An instant that has no replacement for its USDT probe.
    pub const fn of_probe(
        provider: &'static str,
        name: &'static str,
        program: &'static str,
    ) -> Self {
        let (usdt_program, function_program) = (program, program);
        Self { usdt: (provider, name), usdt_program, functions: &[], function_program }
    }
}

/// A location in a file that a program can be attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// All locations of a USDT probe.
    Usdt {
        /// Provider, for example `hotspot`.
        provider: Cow<'static, str>,
        /// Name, for example `gc__begin`.
        name: Cow<'static, str>,
    },
    /// The entry of a function.
    Function {
        /// Its mangled name.
        symbol: String,
        /// Offset of its first instruction in the file.
        offset: FileOffset,
    },
}

/// A program and its location in a file.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the program.
    pub program: &'static str,
    /// Location that it is attached to.
    pub site: Site,
    /// What is lost if the kernel refuses this attachment, for a message; `None` if the tool cannot work
    /// without it.
    pub optional: Option<&'static str>,
}

/// Processes whose hits are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One process.
    Process(Pid),
    /// Every process that maps the file, now or later.
    AllProcesses,
}

/// Finds a location for every instant in a libjvm.so: the USDT probes or, if any of them is missing, the functions;
/// never a mixture.
///
/// # Errors
/// [`Error::NoProbes`], with what is missing and what would help.
pub fn resolve(path: &Path, elf: &ElfFile, instants: &[Instant]) -> Result<Vec<Plan>> {
    let probes = elf.stapsdt()?;
    let mut has_all = true;
    for instant in instants {
        has_all &= probes.has(instant.usdt.0, instant.usdt.1)?;
    }
    if has_all {
        let plan = |i: &Instant| Plan {
            program: i.usdt_program,
            site: Site::Usdt { provider: i.usdt.0.into(), name: i.usdt.1.into() },
            optional: None,
        };
        return Ok(instants.iter().map(plan).collect());
    }
    let prefixes: Vec<_> =
        instants.iter().flat_map(|i| i.functions).flat_map(|set| *set).copied().collect();
    let found = functions(elf, &prefixes)?;
    let site = |f: &&str| found[prefixes.iter().position(|prefix| prefix == f)?].clone();
    let mut plans = Vec::new();
    for instant in instants {
        let all = |set: &&[&str]| set.iter().map(site).collect();
        let sites: Option<Vec<Site>> = instant.functions.iter().find_map(all);
        let Some(sites) = sites else {
            return Err(missing(path, &probes, elf.is_stripped()?, instant));
        };
        let plan = |site| Plan { program: instant.function_program, site, optional: None };
        plans.extend(sites.into_iter().map(plan));
    }
    Ok(plans)
}

fn missing(path: &Path, probes: &Probes, is_stripped: bool, instant: &Instant) -> Error {
    const WITH_PROBES: &str = "use a JDK build with probes (Temurin, Debian, Ubuntu, Fedora)";
    let (provider, name) = instant.usdt;
    let why = probes.explain_missing(provider, name);
    let probe = format!("USDT probe {provider}:{name} ({why})");
    let functions: Vec<_> = instant.functions.iter().map(|set| set.join(" and ")).collect();
    let (what, hint) = match (functions.is_empty(), is_stripped) {
        (true, _) => (probe, WITH_PROBES.into()),
        (_, true) => (
            format!(
                "{probe}, and no symbol table, because it is stripped, so functions that could \
                 replace the probe cannot be found"
            ),
            format!("{WITH_PROBES} or with its symbol table (Alpine){}", symbols_hint(path)),
        ),
        (_, false) => (
            format!("{probe} and no function {} in its symbol table", functions.join(" or ")),
            WITH_PROBES.into(),
        ),
    };
    Error::NoProbes { path: path.to_owned(), what, hint }
}

/// Returns the end of a hint on how to get the symbols of a stripped file. The hint names the package that
/// contains them, if the package is known.
pub(crate) fn symbols_hint(libjvm: &Path) -> String {
    let package =
        debug_package(libjvm).map_or_else(String::new, |name| format!("install {name}, or "));
    format!(", or {package}specify a file with its symbols with --symbols-from")
}

/// Returns the entry of the first function whose mangled name begins with `prefix`. A symbol of a separate
/// debug file is used only if `elf` itself shows that a function begins at the symbol's address.
pub fn function(elf: &ElfFile, symbols: &Symbols<'_>, prefix: &str) -> Option<Site> {
    entry(elf, symbols.find_prefix(prefix)?)
}

/// Returns, for each prefix, the entry of the first function whose mangled name begins with it, as [`function`] does, but
/// searches for all of them at once.
///
/// # Errors
/// [`Error::Elf`].
pub(crate) fn functions(elf: &ElfFile, prefixes: &[&str]) -> Result<Vec<Option<Site>>> {
    let found = elf.symbols()?.find_prefixes(prefixes);
    Ok(found.into_iter().map(|symbol| entry(elf, symbol?)).collect())
}

fn entry(elf: &ElfFile, symbol: Symbol) -> Option<Site> {
    (!elf.has_separate_symbols() || elf.begins_function(symbol.value)).then_some(())?;
    let offset = elf.vaddr_to_offset(symbol.value)?;
    Some(Site::Function { symbol: symbol.name, offset })
}

/// Returns the entry of an exported function. Exported functions have symbols in every build.
///
/// # Errors
/// [`Error::Elf`].
pub(crate) fn exported(elf: &ElfFile, name: &str) -> Result<Option<Site>> {
    let found = elf.dynamic_symbols()?.find(name);
    let offset = found.and_then(|symbol| elf.vaddr_to_offset(symbol.value));
    Ok(offset.map(|offset| Site::Function { symbol: name.into(), offset }))
}

/// A file that programs are attached to.
#[derive(Clone, Debug)]
pub struct Binary {
    /// Path that opens exactly this file.
    pub path: PathBuf,
    /// Path in the mount namespace of the processes that use it.
    pub target_path: PathBuf,
}

impl From<&LibJvm> for Binary {
    fn from(libjvm: &LibJvm) -> Self {
        Self { path: libjvm.open_path(), target_path: libjvm.target_path.clone() }
    }
}

/// The file that programs are being attached to, opened.
#[derive(Debug)]
pub(crate) struct Code<'a> {
    binary: &'a Binary,
    scope: Scope,
    file: File,
    /// Locations of the USDT probes, once they were read.
    probes: OnceCell<Probes>,
    counted: CountedFile,
}

impl<'a> Code<'a> {
    /// Opens a file to attach programs in this scope.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn open(binary: &'a Binary, scope: Scope) -> Result<Self> {
        let file = File::open(&binary.path).map_err(|e| unreadable(binary, e))?;
        let counted = CountedFile::new(&file)?;
        Ok(Self { binary, scope, file, probes: OnceCell::new(), counted })
    }

    /// Reads the code at a site. Otherwise, the kernel would read it while it attaches; it then reports no error of the disk,
    /// and ext4 warns about a read without its locks (uprobe_register(), read_cache_page()). Also
    /// checks that the site has not too many mappings.
    fn prepare(&self, site: &Site) -> Result<()> {
        let check = |offset: FileOffset| {
            let read = self.file.read_at(&mut [0], offset.0);
            read.map_err(|e| unreadable(self.binary, e))?;
            self.counted.check(offset, self.scope)
        };
        match site {
            Site::Function { offset, .. } => check(*offset),
            Site::Usdt { provider, name } => {
                let mut offsets = self.probes()?.find(provider, name).filter_map(|p| p.offset);
                offsets.try_for_each(check)
            }
        }
    }

    fn probes(&self) -> Result<&Probes> {
        if let Some(probes) = self.probes.get() {
            return Ok(probes);
        }
        let file = self.file.try_clone().map_err(|e| unreadable(self.binary, e))?;
        let probes = ElfFile::open(file)?.stapsdt()?;
        Ok(self.probes.get_or_init(|| probes))
    }
}

fn unreadable(binary: &Binary, error: io::Error) -> Error {
    Error::io(format!("read the code of {}", binary.target_path.display()), error)
}

/// Attaches one program of an object.
///
/// `cookie` is passed to the program with every hit, if [the kernel](bpf::has_cookies) supports that.
///
/// # Errors
/// [`Error::Permission`], [`Error::NoSuchProcess`] or [`Error::Bpf`], naming the location; and the errors of
/// [`CountedFile::check`].
pub(crate) fn attach(
    program: &ProgramMut<'_>,
    object: &dyn Object,
    code: &Code<'_>,
    site: &Site,
    cookie: u64,
) -> Result<Link> {
    let Code { binary, scope, .. } = code;
    let path = &binary.path;
    let cookie = if bpf::has_cookies() {
        cookie
    } else if bpf::sees_initial_pids() {
        // Without cookies, the program identifies the process by its PID alone.
        0
    } else {
        return Err(Error::Kernel {
            what: "trace from inside a PID namespace".into(),
            hint: "use Linux 5.15 or later, or run this tool outside of containers".into(),
        });
    };
    let pid = match scope {
        // A value out of range matches no process, which yields the correct error.
        Scope::Process(pid) => i32::try_from(pid.0).unwrap_or(i32::MAX),
        Scope::AllProcesses => -1,
    };
    code.prepare(site)?;
    let guard = detach::begin_attaching();
    let locked = object.lock();
    let (result, place) = match site {
        Site::Usdt { provider, name } => {
            let opts = UsdtOpts { cookie, ..Default::default() };
            (
                program.attach_usdt_with_opts(pid, path, provider, name, opts),
                format!("USDT probe {provider}:{name}"),
            )
        }
        Site::Function { symbol, offset } => {
            let opts = UprobeOpts { cookie, ..Default::default() };
            let offset = usize::try_from(offset.0).unwrap_or(usize::MAX);
            (program.attach_uprobe_with_opts(pid, path, offset, opts), format!("function {symbol}"))
        }
    };
    drop((locked, guard));
    result.map_err(|source| {
        let what = format!("attach to {place} of {}", binary.target_path.display());
        match (source.kind(), scope) {
            (ErrorKind::PermissionDenied, _) => Error::Permission {
                what,
                missing: "possible causes are a missing CAP_SYS_ADMIN, a user namespace, seccomp \
                          or lockdown"
                    .into(),
            },
            (_, Scope::Process(pid)) if !process::exists(*pid) => {
                Error::NoSuchProcess { pid: *pid }
            }
            _ => Error::Bpf { what, source },
        }
    })
}

/// A set of attachments. When it is dropped, a background thread detaches all of them.
#[derive(Default)]
pub struct Links {
    links: Vec<Link>,
    /// Descriptors that were opened while the links were made, by this or other threads.
    opened: Vec<RawFd>,
    /// The BPF objects whose programs are attached, each once. libbpf keeps the data of USDT probes in the object, so the
    /// object must not be closed before.
    objects: Vec<Arc<dyn Object>>,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.links.fmt(f)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let Self { links, opened, objects } = self;
        detach::detach((take(links), take(opened), take(objects)));
    }
}

impl Links {
    /// An empty set for attachments of the programs of one BPF object. Dropping `object` closes it.
    pub(crate) fn of_object(object: Arc<dyn Object>) -> Self {
        Self { links: Vec::new(), opened: Vec::new(), objects: vec![object] }
    }

    /// Adds an attachment.
    pub(crate) fn push(&mut self, link: Link) {
        self.links.push(link);
    }

    /// Makes attachments with a function that adds them, and notes their descriptors, which libbpf hides.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub(super) fn note_descriptors(
        &mut self,
        make: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before: HashSet<_> = detach::descriptors().collect();
        let made = make(self);
        self.opened.extend(detach::descriptors().filter(|fd| !before.contains(fd)));
        made
    }

    /// Adds the attachments of another set.
    pub fn extend(&mut self, mut other: Self) {
        self.links.append(&mut other.links);
        self.opened.append(&mut other.opened);
        let is_new =
            |object: &Arc<dyn Object>| !self.objects.iter().any(|own| Arc::ptr_eq(own, object));
        let new: Vec<_> = take(&mut other.objects).into_iter().filter(is_new).collect();
        self.objects.extend(new);
    }
}
