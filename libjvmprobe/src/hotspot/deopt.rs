//! Reasons of deoptimisations.
//!
//! Source: hotspot/share/runtime/deoptimization.hpp. Compiled code requests a deoptimisation with one
//! number, into which a reason and an action are packed. The table of integer constants gives the bit
//! fields and the names, so no knowledge about versions is needed.

use std::collections::HashMap;

use crate::{
    Result,
    hotspot::{HotSpot, vmstructs},
};

/// Bit fields and names of the parts of a request.
#[derive(Clone, Debug, Default)]
pub struct Traps {
    reasons: HashMap<u32, String>,
    actions: HashMap<u32, String>,
    reason: Field,
    action: Field,
}

#[derive(Clone, Copy, Debug, Default)]
struct Field {
    shift: u32,
    bits: u32,
}

impl Field {
    fn of(self, packed: u32) -> u32 {
        let mask = 1_u32.checked_shl(self.bits).map_or(u32::MAX, |above| above - 1);
        packed.checked_shr(self.shift).unwrap_or(0) & mask
    }
}

const CLASS: &str = "Deoptimization::";

impl HotSpot {
    /// Reads how requests for deoptimisation are packed.
    ///
    /// # Errors
    /// [`crate::Error::Layout`], [`crate::Error::Memory`].
    pub fn traps(&self) -> Result<Traps> {
        let mut traps = Traps::default();
        let lookup = |name: &str| self.build.exported(name, self.bias);
        vmstructs::int_constants(&self.memory, lookup, |name, value| {
            if let Some(name) = name.strip_prefix(CLASS) {
                traps.add_constant(name, value);
            }
        })?;
        Ok(traps)
    }
}

impl Traps {
    fn add_constant(&mut self, name: &str, value: u32) {
        match name {
            "_reason_bits" => self.reason.bits = value,
            "_reason_shift" => self.reason.shift = value,
            "_action_bits" => self.action.bits = value,
            "_action_shift" => self.action.shift = value,
            // These constants are limits of the enumerations, not reasons or actions.
            _ if name.ends_with("_LIMIT") || name.ends_with("_LENGTH") => {}
            _ => {
                // Some values have a second name; the first one in the table is used.
                if let Some(name) = name.strip_prefix("Reason_") {
                    self.reasons.entry(value).or_insert_with(|| name.into());
                } else if let Some(name) = name.strip_prefix("Action_") {
                    self.actions.entry(value).or_insert_with(|| name.into());
                }
            }
        }
    }

    /// Returns the reason and the action of a request. A request that is not negative is the constant pool
    /// index of a class that is not loaded yet.
    pub(crate) fn explain(&self, request: i32) -> (String, String) {
        let name = |names: &HashMap<u32, String>, number: u32| {
            names.get(&number).cloned().unwrap_or_else(|| number.to_string())
        };
        if request >= 0 {
            return ("unloaded".into(), "reinterpret".into());
        }
        let packed = !(request as u32);
        (name(&self.reasons, self.reason.of(packed)), name(&self.actions, self.action.of(packed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_request_decodes_into_reason_and_action() {
        let mut traps = Traps::default();
        for (name, value) in [
            ("_action_bits", 3),
            ("_reason_bits", 5),
            ("_action_shift", 0),
            ("_reason_shift", 3),
            ("Reason_null_check", 1),
            ("Reason_class_check", 4),
            ("Reason_RECORDED_LIMIT", 4),
            ("Action_none", 0),
            ("Action_maybe_recompile", 1),
        ] {
            traps.add_constant(name, value);
        }
        // ~(action | reason << 3), like make_trap_request().
        let request = |reason: i32, action: i32| !(action | reason << 3);
        let explain = |traps: &Traps, request| {
            let (reason, action) = traps.explain(request);
            format!("{reason} {action}")
        };
        assert_eq!(explain(&traps, request(4, 1)), "class_check maybe_recompile");
        assert_eq!(explain(&traps, request(1, 0)), "null_check none");
        assert_eq!(explain(&traps, request(30, 7)), "30 7");
        assert_eq!(explain(&traps, 17), "unloaded reinterpret");
        // Implausible bit fields cause no panic.
        traps.add_constant("_reason_shift", 99);
        traps.add_constant("_reason_bits", 99);
        assert_eq!(explain(&traps, -1), "0 none");
    }
}
