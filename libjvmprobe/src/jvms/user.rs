//! The user that a command runs as (`--user`), and the owner of a file.
//!
//! Reads accounts with `getent` and `id`, which also know users of directory services (LDAP, systemd).

use std::{
    env,
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use rustix::{
    fs::{Gid, Uid},
    process::geteuid,
    thread::{
        clear_ambient_capability_set, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{Error, Result};

/// Group ID of the account `nobody`, for users without an account.
const NO_GROUP: u32 = 65534;

/// User ID, group IDs and environment of a user, as a login would set them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    /// HOME, USER and LOGNAME, with their values.
    environment: Vec<(&'static str, String)>,
}

impl User {
    /// Finds a user by name or UID. A UID without an account is accepted.
    ///
    /// # Errors
    /// [`Error::Unknown`] if no user has this name, [`Error::Io`] if the output of `getent` cannot be parsed.
    pub fn find(name: &str) -> Result<Self> {
        let number = name.parse::<u32>().ok().filter(|&number| number != u32::MAX);
        if let Some(entry) = output_of("getent", &["passwd", "--", name]) {
            let user = Self::parse(&entry, || output_of("id", &["-G", "--", name]));
            let strange = || io::Error::other(format!("getent printed {entry:?}"));
            return user.ok_or_else(|| Error::io(format!("look up user {name}"), strange()));
        }
        match number {
            Some(number) => {
                let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
                Ok(Self { uid, gid, groups: Vec::new(), environment: Vec::new() })
            }
            None => Err(Error::Unknown {
                what: format!("user {name} (list users with `getent passwd`)"),
                near: Vec::new(),
            }),
        }
    }

    /// Parses a line of passwd(5). `groups` returns the group IDs, separated by white space.
    fn parse(entry: &str, groups: impl FnOnce() -> Option<String>) -> Option<Self> {
        let fields: Vec<_> = entry.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
        let groups = groups().unwrap_or_default();
        let groups = groups.split_ascii_whitespace().filter_map(|group| group.parse().ok());
        Some(Self {
            uid: Uid::from_raw(uid.parse().ok()?),
            gid: Gid::from_raw(gid.parse().ok()?),
            groups: groups.map(Gid::from_raw).collect(),
            environment: [("HOME", home), ("USER", name), ("LOGNAME", name)]
                .map(|(variable, value)| (variable, value.to_owned()))
                .into(),
        })
    }

    /// Sets the environment variables of the user's command.
    pub(crate) fn prepare(&self, command: &mut Command) {
        command.envs(self.environment.iter().map(|(variable, value)| (variable, value)));
    }

    /// Switches to the owner of a file irrevocably, if this process runs as root and the file is another user's. The groups
    /// are those of the owner's account, because the file may have a group that the owner is not a member of.
    ///
    /// User IDs belong to threads, and new threads inherit them. So call this before starting threads.
    ///
    /// # Errors
    /// [`Error::Io`] if the owner cannot be read, or if the kernel refuses the switch.
    pub fn become_owner(file: &File) -> Result<()> {
        let owner = file.metadata().map_err(|e| Error::io("read the owner of a file", e))?.uid();
        if !geteuid().is_root() || owner == 0 {
            return Ok(());
        }
        Self::of_uid(owner).switch_to().map_err(|e| Error::io(format!("act as user {owner}"), e))
    }

    /// Returns the user with this UID; without groups if it has no account.
    fn of_uid(uid: u32) -> Self {
        let name = uid.to_string();
        let entry = output_of("getent", &["passwd", "--", &name]);
        let user = entry.and_then(|e| Self::parse(&e, || output_of("id", &["-G", "--", &name])));
        // A name can consist of digits, so the account may be another one.
        user.filter(|user| user.uid.as_raw() == uid).unwrap_or_else(|| Self {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(NO_GROUP),
            groups: Vec::new(),
            environment: Vec::new(),
        })
    }

    /// Switches to this user irrevocably. Runs between fork and exec, so it makes only system calls.
    pub(crate) fn switch_to(&self) -> io::Result<()> {
        // This fails on no supported kernel, so the result is ignored.
        let _ = clear_ambient_capability_set();
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(Some(self.gid), Some(self.gid), Some(self.gid))?;
        Ok(set_thread_res_uid(Some(self.uid), Some(self.uid), Some(self.uid))?)
    }
}

/// Returns a warning if this process runs under sudo, where a command without `--user` runs as root.
pub fn warning() -> Option<String> {
    let user = env::var("SUDO_USER").ok().filter(|name| name != "root")?;
    let is_name = user.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let user = if is_name { user } else { "NAME".into() };
    geteuid()
        .is_root()
        .then(|| format!("the command runs as root; use --user {user} to run it as {user}"))
}

fn output_of(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.is_empty()).then(|| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_without_account_gets_no_group() {
        let uid = 4_000_000_123;
        let user = User::of_uid(uid);
        assert_eq!((user.uid.as_raw(), user.gid.as_raw()), (uid, NO_GROUP));
        assert!(user.groups.is_empty());
        assert_eq!(User::of_uid(0).uid, Uid::ROOT);
    }

    #[test]
    fn passwd_line_parses_as_user() {
        let line = "alice:x:1000:1001:Alice,,,:/home/alice:/bin/bash";
        let user = User::parse(line, || Some("1001 27".into())).unwrap();
        assert_eq!((user.uid, user.gid), (Uid::from_raw(1000), Gid::from_raw(1001)));
        assert_eq!(user.groups, [1001, 27].map(Gid::from_raw));
        assert_eq!(user.environment[0], ("HOME", "/home/alice".to_owned()));
        assert_eq!(user.environment[2], ("LOGNAME", "alice".to_owned()));
        assert_eq!(User::parse("alice", || None), None);
    }

    #[test]
    fn numeric_ids_are_accepted_and_unknown_names_rejected() {
        assert_eq!(User::find("0").unwrap().uid, Uid::ROOT);
        assert_eq!(User::find("54321").unwrap().uid, Uid::from_raw(54321));
        assert!(User::find("no-such-user").unwrap_err().to_string().contains("no-such-user"));
        assert!(User::find("--help").is_err());
    }
}
