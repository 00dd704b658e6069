//! Sandboxing of child processes. A child gets a minimal environment and is started from a thread that has given
//! up, irrevocably and for its children, what they do not need: with Landlock most files, signals and TCP, with seccomp
//! sockets and other ways out. Resource limits are set as soon as the child exists. So no wrapper program is needed,
//! and nothing runs between fork and exec. What the kernel does not support is left out and logged once.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::priority;

/// The newest Landlock ABI that we know; on an older kernel, everything it supports is used.
const LANDLOCK: ABI = ABI::V6;
/// What every program may read and execute: installed files, never generated ones.
const INSTALLED: [&str; 18] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/share",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/share",
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
];
/// Devices without content.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];
/// The variables a child inherits: where its libraries and voices are if they are in unusual places. It may read
/// those.
const KEPT: [&str; 2] = ["LD_LIBRARY_PATH", "ESPEAK_DATA_PATH"];
/// The `PATH` of children.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The usual memory limit of a child: more than any of our programs uses, less than the machine needs.
pub const MEMORY: u64 = 1 << 30;
/// Size limit of files a child writes. With Landlock it can only write to memory files, and a library used by
/// espeak-ng creates one of this size.
const FILE: u64 = 64 << 20;
/// Limit of open files.
const FILES: u64 = 64;
/// Limit of processes and threads of the user we run as; above it a child can start no more. It does not apply to
/// the superuser.
const PROCESSES: u64 = 1024;

/// How much of the sandbox this system enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    files: Enforced,
    /// Whether seccomp blocks the network.
    network: bool,
}

/// How much of the Landlock ruleset is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Enforced {
    All,
    Some,
    None,
}

impl From<RulesetStatus> for Enforced {
    fn from(status: RulesetStatus) -> Self {
        match status {
            RulesetStatus::FullyEnforced => Self::All,
            RulesetStatus::PartiallyEnforced => Self::Some,
            RulesetStatus::NotEnforced => Self::None,
        }
    }
}

impl Confinement {
    /// What this system enforces, determined once on a thread that tries it.
    pub fn of_this_system() -> Self {
        static FOUND: OnceLock<Confinement> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let tried = std::thread::spawn(|| Self {
                files: restrict(&[]).unwrap_or(Enforced::None),
                network: filter().is_some_and(|filter| apply_filter(filter).is_ok()),
            });
            tried.join().unwrap_or(Self {
                files: Enforced::None,
                network: false,
            })
        })
    }

    /// Whether everything is enforced.
    pub const fn is_whole(self) -> bool {
        matches!(self.files, Enforced::All) && self.network
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = match self.files {
            Enforced::All => "what is installed",
            Enforced::Some => "what is installed, as far as this kernel's Landlock goes",
            Enforced::None => "whatever we may (this kernel has no Landlock)",
        };
        let network = if self.network {
            "no network"
        } else {
            "the network (this kernel has no seccomp)"
        };
        write!(f, "confined: they read {files}, and reach {network}")
    }
}

/// The lowest limit that a process may have for raising its own priority (setrlimit(2), RLIMIT_NICE).
const LOWEST_PRIORITY: u64 = 0;

/// Limits of a child.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// CPU time.
    pub work: Duration,
    /// Memory, in bytes.
    pub memory: u64,
    /// Whether sound that is due now goes before it, as it computes for milliseconds at a time.
    pub may_wait: bool,
}

/// Starts `command`, which runs `program` and may read `readable`. Must be called in a tokio runtime. Costs about
/// as much as starting it without a sandbox.
pub fn spawn(
    command: &mut Command,
    program: &Path,
    readable: &[&Path],
    bounds: Bounds,
) -> io::Result<Child> {
    let enforced = Confinement::of_this_system();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let mut path = folder.as_os_str().to_owned();
    path.push(":");
    path.push(PATH);
    command.env_clear().env("PATH", path).env("LANG", "C.UTF-8");
    // One of the recogniser's libraries would start a thread per core, which it does not need.
    command.env("OPENBLAS_NUM_THREADS", "1");
    // Where the child is this program: its allocator only reserves the gigabyte that it keeps order in. Mapped for writing
    // it would count as memory of the child.
    command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
    let mut files: Vec<PathBuf> = vec![program.to_owned()];
    files.extend(readable.iter().map(|&file| file.to_owned()));
    for name in KEPT {
        if let Some(value) = std::env::var_os(name) {
            files.extend(std::env::split_paths(&value).filter(|folder| folder.is_absolute()));
            command.env(name, value);
        }
    }
    let runtime = Handle::current();
    let spawned = std::thread::scope(|scope| {
        // The restrictions are irrevocable, so each child needs a new thread.
        let thread = std::thread::Builder::new().name("start-program".to_owned());
        let thread = thread.spawn_scoped(scope, || {
            let _runtime = runtime.enter();
            // The child gets the priority of this thread.
            if bounds.may_wait {
                priority::may_wait();
            }
            restrict(&files)?;
            if enforced.network
                && let Some(filter) = filter()
            {
                apply_filter(filter).map_err(io::Error::other)?;
            }
            command.spawn()
        })?;
        let died = || io::Error::other("the thread that starts programs has died");
        thread.join().unwrap_or_else(|_| Err(died()))
    })?;
    // Limits can only be set on an existing process. It has not read any input yet: we write that afterwards.
    if let Some(pid) = pid(&spawned) {
        for (resource, limit) in [
            (Resource::Data, bounds.memory),
            (Resource::Fsize, FILE),
            (Resource::Nofile, FILES),
            (Resource::Nproc, PROCESSES),
            // No priority above the usual one.
            (Resource::Nice, LOWEST_PRIORITY),
            (Resource::Core, 0),
        ] {
            bound(pid, resource, limit);
        }
        let seconds = bounds.work.as_secs().saturating_add(1);
        bound(pid, Resource::Cpu, seconds);
    }
    Ok(spawned)
}

/// Extends the CPU time limit of a running child, counted from its start. The child cannot raise it itself.
pub fn allow_work(child: &Child, work: Duration) {
    if let Some(pid) = pid(child) {
        bound(pid, Resource::Cpu, work.as_secs().saturating_add(1));
    }
}

fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| Pid::from_raw(id.cast_signed()))
}

fn bound(pid: Pid, resource: Resource, limit: u64) {
    // The CPU limit is raised again later, and an unprivileged process cannot raise a hard limit.
    let maximum = (!matches!(resource, Resource::Cpu)).then_some(limit);
    let limits = Rlimit {
        current: Some(limit),
        maximum,
    };
    if let Err(error) = prlimit(Some(pid), resource, limits) {
        // It has already exited.
        tracing::trace!(%error, "a program is not bounded");
    }
}

/// Restricts this thread: no files but the installed and these, no TCP, no signals to processes outside the
/// sandbox.
fn restrict(files: &[PathBuf]) -> io::Result<Enforced> {
    let reads = AccessFs::from_read(LANDLOCK);
    let rules = || -> Result<_, landlock::RulesetError> {
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?
            .add_rules(path_beneath_rules(INSTALLED, reads))?
            .add_rules(path_beneath_rules(files, reads))?
            .add_rules(path_beneath_rules(
                DEVICES,
                AccessFs::ReadFile | AccessFs::WriteFile,
            ))?
            .restrict_self()?;
        Ok(status.ruleset.into())
    };
    rules().map_err(io::Error::other)
}

/// A seccomp filter that refuses sockets, access to other processes and to the kernel, and raising one's own
/// limits. Everything else is allowed, because the set of calls a C library makes is not stable.
fn filter() -> Option<&'static BpfProgram> {
    static FILTER: OnceLock<Option<BpfProgram>> = OnceLock::new();
    FILTER
        .get_or_init(|| {
            compiled()
                .inspect_err(|error| tracing::debug!(%error, "there is no seccomp here"))
                .ok()
        })
        .as_ref()
}

/// System calls refused regardless of their arguments.
const REFUSED: [i64; 35] = [
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_io_uring_setup,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_setrlimit,
    libc::SYS_setpriority,
];
/// x32 system calls on x86-64 have this bit set and do the same.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

fn compiled() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in REFUSED {
        rules.insert(call, Vec::new());
    }
    // Reading the limits is harmless.
    let sets = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![sets])?]);
    #[cfg(target_arch = "x86_64")]
    for (call, conditions) in rules.clone() {
        rules.insert(call | X32, conditions);
    }
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}
