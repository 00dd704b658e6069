//! What a child may touch: nothing of ours. It starts with an environment of its own, from a thread that has given up what
//! no child needs (Landlock: files, signals, TCP; seccomp: sockets of any kind and ways out), which a child inherits; what
//! it may use of the machine is bounded as soon as it is there. So no program has to be started before the program, and
//! nothing runs between fork and exec. What a kernel does not know is left out, and said once.

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

/// The newest Landlock that we know; of an older one everything that it has is used.
const LANDLOCK: ABI = ABI::V6;
/// What every program may read and run: what is installed, never what is made.
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
/// Files without content.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];
/// What of our environment a child gets: where its libraries and voices are, when they are elsewhere. It may read those.
const KEPT: [&str; 2] = ["LD_LIBRARY_PATH", "ESPEAK_DATA_PATH"];
/// Where else a program looks for others, which are all installed.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Memory of a child: more than any of our programs takes, and less than what the machine needs.
const MEMORY: u64 = 1 << 30;
/// Bytes of a file that it writes. Where there is Landlock that can be none but in memory, and a library of espeak-ng's
/// begins by making one of this size.
const FILE: u64 = 64 << 20;
/// Files that it has open.
const FILES: u64 = 64;
/// Processes and threads of the user that we run as, at which a child can start no more. The superuser is not bounded.
const PROCESSES: u64 = 1024;

/// What of this the system enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    files: Enforced,
    /// That there is no network is seccomp's matter, which is there or not.
    network: bool,
}

/// How much of what Landlock is asked for holds.
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
    /// What this system does. Found out once, by a thread that tries.
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

    /// Whether nothing is missing.
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

/// What a child may use of the processor.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Seconds of work.
    pub work: Duration,
}

/// Starts what `command` says, which is `program`; it may read `readable`. Must be called in a runtime. Takes about as
/// long as starting it without all this.
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
    // A library of the recogniser's has as many threads as there are cores, and needs none.
    command.env("OPENBLAS_NUM_THREADS", "1");
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
        // What it gives up it has given up for good, so it is a new one each time.
        let thread = std::thread::Builder::new().name("start-program".to_owned());
        let thread = thread.spawn_scoped(scope, || {
            let _runtime = runtime.enter();
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
    // Bounds can only be set on a process that is there. It has read nothing of anybody's by then: its input is ours to
    // write, and comes after this.
    if let Some(pid) = pid(&spawned) {
        for (resource, limit) in [
            (Resource::Data, MEMORY),
            (Resource::Fsize, FILE),
            (Resource::Nofile, FILES),
            (Resource::Nproc, PROCESSES),
            (Resource::Core, 0),
        ] {
            bound(pid, resource, limit);
        }
        let seconds = bounds.work.as_secs().saturating_add(1);
        bound(pid, Resource::Cpu, seconds);
    }
    Ok(spawned)
}

/// Lets a child that goes on work for so long from its start; it may not raise that by itself.
pub fn allow_work(child: &Child, work: Duration) {
    if let Some(pid) = pid(child) {
        bound(pid, Resource::Cpu, work.as_secs().saturating_add(1));
    }
}

fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| Pid::from_raw(id.cast_signed()))
}

fn bound(pid: Pid, resource: Resource, limit: u64) {
    // Work is allowed anew as it comes, and who has no privilege cannot raise a hard limit again.
    let maximum = (!matches!(resource, Resource::Cpu)).then_some(limit);
    let limits = Rlimit {
        current: Some(limit),
        maximum,
    };
    if let Err(error) = prlimit(Some(pid), resource, limits) {
        // It has ended already.
        tracing::trace!(%error, "a program is not bounded");
    }
}

/// Gives up all files but those of the system and these, TCP, and signals to whoever has not given this up.
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

/// What refuses sockets, ways into other processes and into the kernel, and raising one's own bounds. Everything else is
/// allowed: what a C library calls is nothing to rely on.
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

/// The calls that are refused whatever their arguments.
const REFUSED: [i64; 34] = [
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
];
/// Of the calls of x86-64 the x32 ones have another number, and are the same.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

fn compiled() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in REFUSED {
        rules.insert(call, Vec::new());
    }
    // It also reads bounds, which is no harm.
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
