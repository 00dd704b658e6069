//! An internet of its own: hosts in network namespaces, and between them a router whose firewall and address translation are the
//! kernel's (nftables). No wire leads out of it, and it ends with the process that made it, however that ends: namespaces
//! last as long as somebody is in them, and whoever holds these reads from a pipe of ours.
//!
//! Making a namespace is root's right, also that of who is root only in a user namespace of its own; both are tried. A
//! container may be allowed neither, which is no fault of what is tested: [`Internet::open`] then says why, and tests show
//! what they can through [`Network`](crate::rooms::network::Network), which runs in this process.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Server, VIVAVOCE, which};

/// Addresses of the server: of its API, and of its media and its TURN server, which may have the same port.
pub const API: &str = "203.0.113.10";
pub const MEDIA: &str = "203.0.113.11";
/// Their names in the certificate.
const API_NAME: &str = "voice.example.com";
pub const TURN_NAME: &str = "turn.example.com";
/// Addresses that the router has towards the server, one at a time.
const OUTSIDE: [&str; 2] = ["203.0.113.1", "203.0.113.2"];
/// Where clients reach the API. The port is that of the web, as firewalls let nothing else through.
pub const API_URL: &str = "wss://voice.example.com:443";

/// A network namespace, held by a process that waits for the end of this one.
struct Namespace {
    holder: Child,
    /// Whether its root is root only there.
    is_ours_alone: bool,
}

impl Namespace {
    /// `command` is `unshare`, or something that runs it.
    fn make(mut command: Command, is_ours_alone: bool) -> Result<Self, String> {
        let mut holder = command
            .args(["--net", "sh", "-c", "echo made; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let read = BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said);
        if read.is_ok() && said == "made\n" {
            return Ok(Self {
                holder,
                is_ours_alone,
            });
        }
        let ended = holder.wait_with_output().unwrap();
        Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned())
    }

    /// A namespace that nobody has to be allowed to make but root.
    fn first() -> Result<Self, String> {
        let unshare = || Command::new(which("unshare"));
        Self::make(unshare(), false).or_else(|as_root| {
            let mut mapped = unshare();
            mapped.arg("--map-root-user");
            Self::make(mapped, true).map_err(|as_anybody| format!("{as_root}; {as_anybody}"))
        })
    }

    /// One more of the same owner.
    fn next(&self) -> Self {
        let mut command = Command::new(which("unshare"));
        if self.is_ours_alone {
            command = self.entered(&["--user", "--preserve-credentials"]);
            command.arg(which("unshare"));
        }
        Self::make(command, self.is_ours_alone).unwrap()
    }

    fn entered(&self, of: &[&str]) -> Command {
        let mut command = Command::new(which("nsenter"));
        command.args(["--target", &self.holder.id().to_string()]);
        command.args(of);
        command
    }

    /// What is run in it follows.
    fn inside(&self) -> Command {
        let user = ["--user", "--preserve-credentials", "--net"];
        self.entered(if self.is_ours_alone {
            &user
        } else {
            &user[2..]
        })
    }

    /// Runs a script in it to its end; the error is what it said.
    fn attempt(&self, script: &str) -> Result<String, String> {
        let mut path = std::env::var("PATH").unwrap();
        path.push_str(":/usr/sbin:/sbin");
        let mut inside = self.inside();
        inside.args(["sh", "-ec", script]).env("PATH", path);
        let output = inside.output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    fn run(&self, script: &str) -> String {
        let done = self.attempt(script);
        done.unwrap_or_else(|error| panic!("{script}: {error}"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// What the router lets through from a network.
#[derive(Debug, Clone, Copy)]
pub enum Firewall {
    Open,
    WithoutUdp,
    /// Only to these ports, as nftables has it: `tcp dport 443`.
    Only(&'static [&'static str]),
}

/// See the module.
pub struct Internet {
    router: Namespace,
    server: Namespace,
    networks: usize,
    outside: usize,
    /// The certificate of the server and its key, and the names of hosts.
    folder: tempfile::TempDir,
}

/// A network behind the router with one host.
pub struct Host {
    namespace: Namespace,
    name: &'static str,
    /// The network of 24 bits, without its last number.
    network: String,
    folder: PathBuf,
}

impl Internet {
    /// The error says why this machine cannot have one.
    pub fn open() -> Result<Self, String> {
        for program in ["ip", "tc", "nft", "conntrack"] {
            which(program);
        }
        let router = Namespace::first()?;
        router.attempt("echo 1 >/proc/sys/net/ipv4/ip_forward")?;
        let server = router.next();
        connect(&router, "wan", &server);
        // From another port for each address and port that somebody sends to, which is called symmetric.
        router.run(&format!(
            "ip address add {}/24 dev wan
            nft '
            table ip router {{
                chain forward {{ type filter hook forward priority filter; }}
                chain translate {{
                    type nat hook postrouting priority srcnat;
                    oifname wan masquerade random,fully-random
                }}
            }}
            '",
            OUTSIDE[0]
        ));
        server.run(&format!(
            "ip address add {API}/24 dev eth0; ip address add {MEDIA}/24 dev eth0"
        ));
        let folder = tempfile::tempdir().unwrap();
        let names = [API_NAME, TURN_NAME].map(ToOwned::to_owned);
        let pair = rcgen::generate_simple_self_signed(names).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("cert.pem", &pair.cert.pem());
        write("key.pem", &pair.signing_key.serialize_pem());
        write(
            "hosts",
            &format!("127.0.0.1 localhost\n{API} {API_NAME}\n{MEDIA} {TURN_NAME}\n"),
        );
        // Nobody answers there, and that at once.
        write("resolv.conf", "nameserver 127.0.0.1\n");
        Ok(Self {
            router,
            server,
            networks: 0,
            outside: 0,
            folder,
        })
    }

    /// The same, or a word about why there is none, which shall be seen.
    pub fn open_or_say() -> Option<Self> {
        let opened = Self::open();
        if let Err(error) = &opened {
            let said = format!(
                "NO NETWORK NAMESPACES, a proxy stands for them: {error}. They need root with CAP_SYS_ADMIN and \
                 CAP_NET_ADMIN, or user namespaces.\n"
            );
            // Not by the macros, whose text is shown of failed tests only.
            std::io::stderr().write_all(said.as_bytes()).unwrap();
        }
        opened.ok()
    }

    /// A server as for the world: with TLS at port 443 of one address, and with media at another.
    pub fn server(&self, settings: &[(&str, &str)]) -> Server {
        let data = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| self.file(name));
        let mut command = self.server.inside();
        command
            .arg(VIVAVOCE)
            .args(["serve", "--port", "443", "--data-dir"])
            .arg(data.path())
            .current_dir(data.path());
        let mut all = vec![
            ("HOST", API),
            ("SERVER_TLS_CERT", &cert),
            ("SERVER_TLS_KEY", &key),
            ("RTC_ADVERTISED_ADDRESSES", MEDIA),
            ("LOCAL_STT_PRELOAD", "false"),
        ];
        all.extend_from_slice(settings);
        Server::of_command(command, &all, data, Stdio::inherit()).unwrap()
    }

    /// A network with one host, from which the router lets this through.
    pub fn network(&mut self, name: &'static str, firewall: Firewall) -> Host {
        self.networks += 1;
        let network = format!("192.168.{}", self.networks);
        let namespace = self.router.next();
        connect(&self.router, name, &namespace);
        let rules = match firewall {
            Firewall::Open => String::new(),
            Firewall::WithoutUdp => format!("meta l4proto udp counter name {name}_lost drop"),
            Firewall::Only(ports) => {
                let accepted = ports.iter().map(|port| format!("{port} accept\n"));
                accepted.collect::<String>() + &format!("counter name {name}_lost drop")
            }
        };
        self.router.run(&format!(
            "ip address add {network}.1/24 dev {name}
            nft '
            table ip router {{
                counter {name}_lost {{ }}
                chain from_{name} {{
                    {rules}
                }}
                chain to_{name} {{ }}
                chain forward {{
                    iifname {name} jump from_{name}
                    oifname {name} jump to_{name}
                }}
            }}
            '"
        ));
        namespace.run(&format!(
            "ip address add {network}.2/24 dev eth0; ip route add default via {network}.1"
        ));
        Host {
            namespace,
            name,
            network,
            folder: self.folder.path().to_owned(),
        }
    }

    /// Packets from a network that the firewall has dropped.
    pub fn lost(&self, host: &Host) -> u64 {
        let name = host.name;
        let list = format!("nft list counter ip router {name}_lost");
        let said = self.router.run(&list);
        let mut words = said.split_whitespace();
        words.find(|word| *word == "packets");
        words.next().unwrap().parse().unwrap()
    }

    /// The router forgets whose packets it carries, as one that has started anew: what clients send comes from other ports.
    pub fn forget(&self) {
        self.router.run("conntrack --flush 2>&1");
    }

    /// The router gets another address, as after it has dialled in again.
    pub fn change_address(&mut self) {
        let former = OUTSIDE[self.outside];
        self.outside = 1 - self.outside;
        let next = OUTSIDE[self.outside];
        self.router.run(&format!(
            "ip address del {former}/24 dev wan; ip address add {next}/24 dev wan; conntrack --flush 2>&1"
        ));
    }

    /// How much goes to a network in a second (`None`: as much as comes), and how many datagrams of a hundred are lost.
    pub fn weather(&self, host: &Host, bits_per_second: Option<u32>, loss_percent: u32) {
        let name = host.name;
        self.router.run(&match bits_per_second {
            None => format!("tc qdisc del dev {name} root 2>&1 || true"),
            Some(rate) => {
                format!("tc qdisc replace dev {name} root tbf rate {rate} burst 8kb latency 300ms")
            }
        });
        // The module of the kernel that loses packets by itself is not everywhere.
        self.router.run(&format!(
            "nft flush chain ip router to_{name}
            nft add rule ip router to_{name} meta l4proto udp numgen random mod 100 \\< {loss_percent} drop"
        ));
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// A wire between the router and a host.
fn connect(router: &Namespace, name: &str, host: &Namespace) {
    let holder = host.holder.id();
    router.run(&format!(
        "ip link add {name} type veth peer name eth0 netns {holder}; ip link set {name} up"
    ));
    host.run("ip link set lo up; ip link set eth0 up");
}

impl Host {
    /// A program that runs at this host, knows the names of servers and believes their certificate.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.namespace.inside();
        command
            .arg(which("unshare"))
            .args(["--mount", "sh", "-ec"])
            .arg(
                "cd \"$0\"
                for file in hosts resolv.conf; do
                    [ ! -e /etc/$file ] || mount --bind $file /etc/$file
                done
                cd - >/dev/null
                exec \"$@\"",
            )
            .arg(&self.folder)
            .arg(program.as_ref())
            .env("SSL_CERT_FILE", self.folder.join("cert.pem"));
        command
    }

    /// It gets another address, as when it moves to another network.
    pub fn change_address(&self) {
        let network = &self.network;
        self.namespace.run(&format!(
            "ip address del {network}.2/24 dev eth0; ip address add {network}.3/24 dev eth0
            ip route add default via {network}.1"
        ));
    }
}
