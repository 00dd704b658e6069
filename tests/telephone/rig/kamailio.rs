//! Kamailio as the proxy of a telephone network: it challenges with 407, stays in the route set, and forwards authenticated
//! requests. And as a PBX, at which telephones register and by which they call each other.

use super::{Program, listened, ports};

/// A proxy. Dropping it ends it.
pub struct Kamailio {
    _program: Program,
    /// Where it listens.
    pub port: u16,
}

impl Kamailio {
    /// A PBX at which a user registers with a password, for so many seconds at most. Calls to registered users go to them.
    pub async fn pbx(user: &str, password: &str, seconds: u32) -> Self {
        Self::pbx_at(ports(2), user, password, seconds).await
    }

    /// The same at this port, where another one may have been before.
    pub async fn pbx_at(port: u16, user: &str, password: &str, seconds: u32) -> Self {
        let check = format!(
            "if ($au != \"{user}\" || !pv_www_authenticate(\"office\", \"{password}\", \"0\"))"
        );
        let text = PBX
            .replace("SECONDS", &seconds.to_string())
            .replace("CHECK", &check);
        Self::run(port, &text).await
    }

    async fn run(port: u16, text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kamailio.cfg");
        let text = MODULES.replace("PORT", &port.to_string()) + text;
        std::fs::write(&file, text).unwrap();
        let program = Program::start("kamailio", folder, |command| {
            // In the foreground, logging to standard error, with little memory: the default is for large sites.
            command.arg("-f").arg(file);
            command.args([
                "-DD", "-E", "-m", "16", "-M", "4", "-w", ".", "-Y", ".", "-n", "1",
            ]);
        });
        listened("udp", port).await;
        Self {
            _program: program,
            port,
        }
    }

    /// A proxy before the telephone at this port that wants this user's password.
    pub async fn start(telephone: u16, user: &str, password: &str) -> Self {
        let port = ports(2);
        let check = format!(
            "if ($au != \"{user}\" || !pv_proxy_authenticate(\"proxy\", \"{password}\", \"0\"))"
        );
        let text = PROXY
            .replace("TELEPHONE", &telephone.to_string())
            .replace("CHECK", &check);
        Self::run(port, &text).await
    }
}

/// What every configuration begins with.
const MODULES: &str = r#"
listen=udp:127.0.0.1:PORT
children=1
disable_tcp=yes
auto_aliases=no
log_stderror=yes
debug=2
loadmodule "tm.so"
loadmodule "sl.so"
loadmodule "rr.so"
loadmodule "pv.so"
loadmodule "maxfwd.so"
loadmodule "textops.so"
loadmodule "siputils.so"
loadmodule "auth.so"
"#;

const PROXY: &str = r#"
request_route {
    if (!mf_process_maxfwd_header("10")) { exit; }
    if (is_method("CANCEL")) {
        if (t_check_trans()) { t_relay(); }
        exit;
    }
    if (is_method("ACK")) {
        if (has_totag()) { loose_route(); }
        t_relay();
        exit;
    }
    if (!(has_totag() && is_method("BYE|NOTIFY"))) {
        CHECK {
            proxy_challenge("proxy", "0");
            exit;
        }
        consume_credentials();
    }
    if (has_totag()) {
        loose_route();
        t_relay();
        exit;
    }
    record_route();
    $du = "sip:127.0.0.1:TELEPHONE";
    t_relay();
}
"#;

const PBX: &str = r#"
loadmodule "usrloc.so"
loadmodule "registrar.so"
modparam("registrar", "max_expires", SECONDS)
modparam("registrar", "min_expires", 0)
modparam("usrloc", "db_mode", 0)

request_route {
    if (!mf_process_maxfwd_header("10")) { exit; }
    if (is_method("CANCEL")) {
        if (t_check_trans()) { t_relay(); }
        exit;
    }
    if (is_method("REGISTER")) {
        CHECK {
            www_challenge("office", "0");
            exit;
        }
        consume_credentials();
        save("location");
        exit;
    }
    if (has_totag()) {
        loose_route();
        t_relay();
        exit;
    }
    if (is_method("ACK")) { t_relay(); exit; }
    record_route();
    if (!lookup("location")) {
        sl_send_reply("404", "Not Found");
        exit;
    }
    t_relay();
}
"#;
