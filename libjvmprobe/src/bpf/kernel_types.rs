//! Offsets of fields in the kernel's structures, from its BTF.
//!
//! libbpf could insert these offsets into our programs itself (CO-RE). But then, on a kernel without BTF, no program
//! of the BPF object would load, not even a program that needs none of these offsets.
//! Source: Documentation/bpf/btf.rst, BTF_KIND_STRUCT.

use libbpf_rs::btf::{
    Btf, TypeId,
    types::{Composite, MemberAttr},
};

use crate::{Error, Result};

/// Maximum nesting depth of anonymous structures that is searched; task_struct has two levels.
const MAX_DEPTH: u32 = 4;

/// Returns the offsets of fields of a structure, in bytes.
///
/// # Errors
/// [`Error::Kernel`] if the kernel has no BTF, or its BTF has no such structure or field.
pub fn offsets<const N: usize>(structure: &str, fields: [&str; N]) -> Result<[u32; N]> {
    KernelTypes::load(structure)?.offsets(structure, fields)
}

/// The kernel's BTF. Loading it takes milliseconds, so code that needs several structures loads it once.
#[derive(Debug)]
pub(crate) struct KernelTypes(Btf<'static>);

impl KernelTypes {
    /// Loads the BTF; `structure` is what it is needed for.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel has no BTF.
    pub(crate) fn load(structure: &str) -> Result<Self> {
        Btf::from_vmlinux().map(Self).map_err(|_| {
            let hint = "/sys/kernel/btf/vmlinux is missing; use a kernel built with \
                        CONFIG_DEBUG_INFO_BTF=y";
            missing(format!("describe the fields of its struct {structure}"), hint)
        })
    }

    /// Returns the offsets of fields of a structure, in bytes.
    ///
    /// # Errors
    /// [`Error::Kernel`] if its BTF lacks the structure or a field.
    pub(crate) fn offsets<const N: usize>(
        &self,
        structure: &str,
        fields: [&str; N],
    ) -> Result<[u32; N]> {
        let found: Option<Composite<'_>> = self.0.type_by_name(structure);
        let found = found.ok_or_else(|| {
            let what = format!("describe its struct {structure}");
            missing(what, "its BTF does not contain that type")
        })?;
        let mut offsets = [0; N];
        for (offset, field) in offsets.iter_mut().zip(fields) {
            *offset = offset_of(&self.0, &found, field, MAX_DEPTH).ok_or_else(|| {
                missing(
                    format!("locate the field {field} of its struct {structure}"),
                    "its BTF has no such field",
                )
            })?;
        }
        Ok(offsets)
    }
}

fn missing(what: String, hint: &str) -> Error {
    Error::Kernel { what, hint: hint.into() }
}

fn offset_of(btf: &Btf<'_>, of: &Composite<'_>, field: &str, depth: u32) -> Option<u32> {
    of.iter().find_map(|member| {
        let MemberAttr::Normal { offset } = member.attr else { return None };
        let bytes = offset / 8;
        match member.name {
            Some(name) if name == field => Some(bytes),
            Some(name) if !name.is_empty() => None,
            // Fields of an anonymous structure belong to the structure that contains it.
            _ => {
                let inner: Composite<'_> = btf.type_by_id(TypeId::from(u32::from(member.ty)))?;
                bytes.checked_add(offset_of(btf, &inner, field, depth.checked_sub(1)?)?)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_finds_kernel_fields_and_rejects_unknown_names() {
        match offsets("task_struct", ["pid", "tgid", "comm", "__state"]) {
            Ok([pid, tgid, ..]) => assert_eq!(tgid, pid + 4),
            Err(error) => println!("skipped: {error}"),
        }
        assert!(offsets("task_struct", ["no_such_field"]).is_err());
        assert!(offsets("no_such_struct", ["pid"]).is_err());
    }
}
