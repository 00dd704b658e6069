//! SIPp as a phone that follows a scenario and fails at anything else. Scenarios are written in code, step by step, from
//! the phone's point of view.

use std::fmt::Write as _;

use super::{Program, listened, ports, tone};

/// The realm that [`Scenario::challenge`] asks for.
const REALM: &str = "telephones";
/// The file that [`Scenario::play`] plays.
const TONE: &str = "tone.ul";

/// What SIPp's SDP says after its version, with the sort of sound.
const SOUND: &str = "\
v=0
o=sipp 1 1 IN IP[local_ip_type] [local_ip]
s=-
c=IN IP[media_ip_type] [media_ip]
t=0 0
m=audio [PORT] RTP/AVP 0 101
a=rtpmap:0 PCMU/8000
a=rtpmap:101 telephone-event/8000
a=fmtp:101 0-15
a=ptime:20
";

/// Steps of one call.
#[derive(Debug, Clone)]
pub struct Scenario {
    steps: String,
    caller: bool,
    /// The number of the next request of the telephone.
    sequence: u32,
    labels: u32,
    /// Whether requests that come now carry our tag.
    answered: bool,
    /// What is played, in Hz.
    hertz: Option<u32>,
    sdp: String,
}

impl Scenario {
    /// A telephone that waits for a call, echoes what it hears, and takes the INVITE as its first step.
    pub fn called() -> Self {
        Self::new(false).receive("INVITE")
    }

    /// The same, answering at once.
    pub fn answers() -> Self {
        Self::called().reply("180 Ringing").answer().receive("ACK")
    }

    /// A telephone that calls, with these headers more, each line ended.
    pub fn calls(headers: &str) -> Self {
        let mut scenario = Self::new(true);
        let sdp = scenario.sdp.clone();
        scenario.invite(headers, &sdp);
        scenario
    }

    /// The same, leaving it to the other side to say what sound there is, until the call is answered and acknowledged.
    pub fn is_offered() -> Self {
        let mut scenario = Self::new(true);
        scenario.invite("", "");
        scenario.optional(&["100", "180", "183"]);
        scenario.step("<recv response=\"200\" rrs=\"true\"/>");
        let sdp = scenario.sdp.clone();
        scenario.acknowledge_with("Content-Type: application/sdp\n", &sdp)
    }

    /// A telephone that calls and acknowledges each ringing, which it requires (RFC 3262), until the call is answered.
    pub fn acknowledges_ringing() -> Self {
        let mut scenario = Self::calls("Require: 100rel\n");
        scenario.optional(&["100"]);
        scenario.step(
            "<recv response=\"180\" rrs=\"true\"><action>\
             <ereg regexp=\"[0-9]+\" search_in=\"hdr\" header=\"RSeq:\" assign_to=\"rseq\"/></action></recv>",
        );
        scenario = scenario.request_with("PRACK", "RAck: [$rseq] 1 INVITE\n", "");
        scenario.step("<recv response=\"200\"/>");
        scenario.step("<recv response=\"200\" rrs=\"true\"/>");
        scenario.sequence = 1;
        scenario = scenario.acknowledge();
        scenario.sequence = 2;
        scenario
    }

    /// A telephone that calls and is answered, with its media at an address of any family.
    pub fn calls_with_media_at(family: u8, address: &str) -> Self {
        let mut scenario = Self::new(true);
        let sdp = scenario.sdp.replace(
            "IN IP[media_ip_type] [media_ip]",
            &format!("IN IP{family} {address}"),
        );
        scenario.sdp.clone_from(&sdp);
        scenario.invite("", &sdp);
        scenario.optional(&["100", "180", "183"]);
        scenario.step("<recv response=\"200\" rrs=\"true\"/>");
        scenario.acknowledge()
    }

    /// A telephone that calls and is answered, with its media at a port of somebody else's on this machine.
    pub fn calls_with_media_port(port: u16) -> Self {
        let mut scenario = Self::new(true);
        scenario.sdp = SOUND.replace("[PORT]", &port.to_string());
        let sdp = scenario.sdp.clone();
        scenario.invite("", &sdp);
        scenario.until_answered()
    }

    /// A telephone that calls and gives up as soon as it rings.
    pub fn gives_up() -> Self {
        let mut scenario = Self::calls("");
        scenario.optional(&["100"]);
        scenario.step("<recv response=\"180\"/>");
        scenario.send(
            "CANCEL sip:[service]@[remote_ip]:[remote_port] SIP/2.0\n[last_Via:]\n[last_From:]\n\
             To: <sip:[service]@[remote_ip]:[remote_port]>\n[last_Call-ID:]\nCSeq: 1 CANCEL\nMax-Forwards: 70\n\
             Content-Length: 0\n\n",
        );
        scenario.response(200).refused(487)
    }

    /// The same, until the call is answered.
    pub fn is_answered(headers: &str) -> Self {
        let mut scenario = Self::calls(headers);
        scenario.optional(&["100", "180", "183"]);
        scenario.step("<recv response=\"200\" rrs=\"true\"/>");
        scenario.acknowledge()
    }

    /// The same, playing a tone from then on.
    pub fn plays_when_answered(headers: &str, hertz: u32) -> Self {
        let mut scenario = Self::new(true).tone(hertz);
        let sdp = scenario.sdp.clone();
        scenario.invite(headers, &sdp);
        scenario.until_answered().play()
    }

    /// One that offers a codec that nobody knows, and is refused with this status.
    pub fn offers_a_codec_that_is_not_known(headers: &str, status: u16) -> Self {
        let mut scenario = Self::new(true);
        let sdp = scenario.sdp.replace("RTP/AVP 0 101", "RTP/AVP 96");
        let sdp = sdp.replace("a=rtpmap:0 PCMU/8000", "a=rtpmap:96 telegraph/8000");
        scenario.invite(headers, &sdp);
        scenario.until_refused(status)
    }

    /// One that leaves it to the other side to say what sound there is, and is refused with this status.
    pub fn offers_nothing(headers: &str, status: u16) -> Self {
        let mut scenario = Self::new(true);
        scenario.invite(headers, "");
        scenario.until_refused(status)
    }

    /// The same, until the call is refused with this status.
    pub fn is_refused(headers: &str, status: u16) -> Self {
        let mut scenario = Self::calls(headers);
        scenario.optional(&["100", "180", "183"]);
        scenario.refused(status)
    }

    /// A telephone that calls, is asked for a password, and gives this one. What follows is [`Self::until_answered`] or
    /// [`Self::until_refused`].
    pub fn logs_in(user: &str, password: &str) -> Self {
        let mut scenario = Self::calls("");
        scenario.optional(&["100"]);
        scenario.step("<recv response=\"401\" auth=\"true\"/>");
        scenario.acknowledge_refusal();
        let sdp = scenario.sdp.clone();
        scenario.invite_again(
            &format!("[authentication username={user} password={password}]\n"),
            &sdp,
        );
        scenario
    }

    /// The call is answered.
    pub fn until_answered(mut self) -> Self {
        self.optional(&["100", "180", "183"]);
        self.step("<recv response=\"200\" rrs=\"true\"/>");
        self.acknowledge()
    }

    /// The call is refused with this status.
    pub fn until_refused(mut self, status: u16) -> Self {
        self.optional(&["100", "180", "183"]);
        self.refused(status)
    }

    fn refused(mut self, status: u16) -> Self {
        self.step(&format!("<recv response=\"{status}\"/>"));
        self.acknowledge_refusal();
        self
    }

    /// The ACK of a refusal belongs to the transaction of the INVITE, hence its Via.
    fn acknowledge_refusal(&mut self) {
        let sequence = self.sequence;
        self.send(&format!(
            "ACK sip:[service]@[remote_ip]:[remote_port] SIP/2.0\n[last_Via:]\n[last_From:]\n[last_To:]\n\
             [last_Call-ID:]\nCSeq: {sequence} ACK\nMax-Forwards: 70\nContent-Length: 0\n\n",
        ));
    }

    /// The INVITE of the same call once more.
    fn invite_again(&mut self, headers: &str, body: &str) {
        let before = self.sequence;
        self.invite(headers, body);
        self.sequence = before + 1;
        let (first, again) = ("CSeq: 1 INVITE", format!("CSeq: {} INVITE", self.sequence));
        let place = self.steps.rfind(first).unwrap();
        self.steps.replace_range(place..place + first.len(), &again);
    }

    fn invite(&mut self, headers: &str, body: &str) {
        let kind = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/sdp\n"
        };
        self.send(&format!(
            "INVITE sip:[service]@[remote_ip]:[remote_port] SIP/2.0\n{CALLER}\nCSeq: 1 INVITE\n\
             Contact: <sip:sipp@[local_ip]:[local_port];transport=[transport]>\nMax-Forwards: 70\n{headers}{kind}\
             Content-Length: [len]\n\n{body}"
        ));
        self.sequence = 1;
    }

    fn new(caller: bool) -> Self {
        Self {
            steps: String::new(),
            caller,
            sequence: 100,
            labels: 0,
            answered: caller,
            hertz: None,
            sdp: SOUND.replace("PORT", "media_port"),
        }
    }

    /// Its sound is a tone instead of an echo. Comes before the step that sends SDP.
    pub fn tone(mut self, hertz: u32) -> Self {
        self.hertz = Some(hertz);
        self.sdp = SOUND.replace("PORT", "rtpstream_audio_port");
        self
    }

    /// Begins to play the tone.
    pub fn play(mut self) -> Self {
        self.step(&format!(
            "<nop><action><exec rtp_stream=\"{TONE},-1,0\"/></action></nop>"
        ));
        self
    }

    /// A request comes. Of the INVITE it remembers who called.
    pub fn receive(mut self, method: &str) -> Self {
        let action = if method == "INVITE" && !self.caller {
            "<action>\
             <ereg regexp=\".*\" search_in=\"hdr\" header=\"From:\" assign_to=\"from\"/>\
             <ereg regexp=\".*\" search_in=\"hdr\" header=\"To:\" assign_to=\"to\"/>\
             <ereg regexp=\"[0-9]+\" search_in=\"hdr\" header=\"CSeq:\" assign_to=\"sequence\"/>\
             <ereg regexp=\".*\" search_in=\"hdr\" header=\"Via:\" assign_to=\"via\"/>\
             <ereg regexp=\"sip:[^>]*\" search_in=\"hdr\" header=\"Contact:\" assign_to=\"contact\"/>\
             </action>"
        } else {
            ""
        };
        self.step(&format!(
            "<recv request=\"{method}\" crlf=\"true\">{action}</recv>"
        ));
        self
    }

    /// It acknowledges the ringing that it was told reliably.
    pub fn acknowledged_ringing(mut self) -> Self {
        self.answered = true;
        self = self.receive("PRACK").reply("200 OK");
        self
    }

    /// Takes the call, of which the INVITE is not the last request.
    pub fn answer_invite(mut self) -> Self {
        let sdp = self.sdp.clone();
        self.send(&format!(
            "SIP/2.0 200 OK\nVia:[$via]\nFrom:[$from]\nTo:[$to];tag=[pid]called[call_number]\nCall-ID: [call_id]\n\
             CSeq: [$sequence] INVITE\nContact: <sip:[local_ip]:[local_port];transport=[transport]>\n\
             Content-Type: application/sdp\nContent-Length: [len]\n\n{sdp}"
        ));
        self
    }

    /// Its last request is answered so.
    pub fn response(mut self, status: u16) -> Self {
        self.optional(&["100"]);
        self.step(&format!("<recv response=\"{status}\"/>"));
        self
    }

    /// Answers the last request with this status, reason and nothing else.
    pub fn reply(self, status: &str) -> Self {
        self.reply_with(status, "")
    }

    /// The same with headers more, each line ended.
    pub fn reply_with(mut self, status: &str, headers: &str) -> Self {
        let head = self.head();
        self.send(&format!(
            "SIP/2.0 {status}\n{head}{headers}Content-Length: 0\n\n"
        ));
        self
    }

    /// The call is cancelled while it rings.
    pub fn cancelled(mut self) -> Self {
        self = self.receive("CANCEL").reply("200 OK");
        let head = self.head();
        let head = head.replace("[last_CSeq:]", "CSeq: [$sequence] INVITE");
        self.send(&format!(
            "SIP/2.0 487 Request Terminated\n{head}Content-Length: 0\n\n"
        ));
        self.receive("ACK")
    }

    /// The headers of a reply.
    fn head_of(tag: &str) -> String {
        REPLY.replace("TAG", &format!(";tag={tag}"))
    }

    /// A reply of another telephone that the call has reached, too: with a tag of its own.
    pub fn reply_of_fork(mut self, status: &str, tag: &str) -> Self {
        let head = Self::head_of(tag);
        self.send(&format!("SIP/2.0 {status}\n{head}Content-Length: 0\n\n"));
        self
    }

    fn head(&self) -> String {
        let tag = if self.answered {
            ""
        } else {
            ";tag=[pid]called[call_number]"
        };
        REPLY.replace("TAG", tag)
    }

    /// Takes the call.
    pub fn answer(self) -> Self {
        self.answer_with("")
    }

    /// The same with headers more, each line ended.
    pub fn answer_with(mut self, headers: &str) -> Self {
        self = self.reply_sound_with("200 OK", headers);
        self.answered = true;
        self
    }

    /// It neither sends nor takes DTMF as events. Comes before the step that sends SDP.
    pub fn without_events(mut self) -> Self {
        let lines = self.sdp.lines().filter(|line| !line.contains(":101 "));
        let lines: Vec<_> = lines.map(|line| line.trim_end_matches(" 101")).collect();
        self.sdp = lines.join("\n") + "\n";
        self
    }

    /// A reply with SDP.
    pub fn reply_sound(self, status: &str) -> Self {
        self.reply_sound_with(status, "")
    }

    /// The same with headers more, each line ended.
    pub fn reply_sound_with(mut self, status: &str, headers: &str) -> Self {
        let (head, sdp) = (self.head(), self.sdp.clone());
        self.send(&format!(
            "SIP/2.0 {status}\n{head}{headers}Content-Type: application/sdp\nContent-Length: [len]\n\n{sdp}"
        ));
        self
    }

    /// Asks for a password with 401 and goes on when the right one comes; the wrong one is refused with 403, which ends
    /// the scenario.
    pub fn challenge(mut self, user: &str, password: &str) -> Self {
        self = self
            .reply_with(
                "401 Unauthorized",
                &format!(
                    "WWW-Authenticate: Digest realm=\"{REALM}\", nonce=\"47ebe028cda119c35d4877b383027d28\", algorithm=MD5, qop=\"auth\"\n"
                ),
            )
            .receive("ACK");
        self.labels += 1;
        let right = self.labels;
        self.step(&format!(
            "<recv request=\"INVITE\" crlf=\"true\"><action><verifyauth assign_to=\"right\" username=\"{user}\" \
             password=\"{password}\"/></action></recv>"
        ));
        self.step(&format!(
            "<nop hide=\"true\" test=\"right\" next=\"{right}\"/>"
        ));
        self = self.reply("403 Forbidden").receive("ACK");
        self.step("<nop hide=\"true\" next=\"end\"/>");
        self.step(&format!("<label id=\"{right}\"/>"));
        self
    }

    /// Asks for a proxy's password with 407; SIPp does not check what comes.
    pub fn challenge_as_proxy(self) -> Self {
        self.reply_with(
            "407 Proxy Authentication Required",
            "Proxy-Authenticate: Digest realm=\"network\", nonce=\"1a2b3c4d5e6f\", algorithm=MD5, qop=\"auth\"\n",
        )
        .receive("ACK")
        .receive("INVITE")
    }

    /// Lets time pass, in which sound goes on.
    pub fn pause(mut self, milliseconds: u32) -> Self {
        self.step(&format!("<pause milliseconds=\"{milliseconds}\"/>"));
        self
    }

    /// Sends a request in the call.
    pub fn request(self, method: &str) -> Self {
        self.request_with(method, "", "")
    }

    /// The same with SDP with this direction: a re-INVITE. What follows is [`Self::response`] and
    /// [`Self::acknowledge`].
    pub fn offer(self, direction: &str) -> Self {
        let sdp = self.sdp.replace("sipp 1 1", "sipp 1 2");
        let body = format!("{sdp}a={direction}\n");
        self.request_with("INVITE", "Content-Type: application/sdp\n", &body)
    }

    /// The same with headers, each line ended, and any body.
    pub fn request_with(mut self, method: &str, headers: &str, body: &str) -> Self {
        self.sequence += 1;
        let (line, dialog) = self.dialog();
        let sequence = self.sequence;
        self.send(&format!(
            "{method} {line} SIP/2.0\n{dialog}CSeq: {sequence} {method}\n\
             Contact: <sip:sipp@[local_ip]:[local_port];transport=[transport]>\nMax-Forwards: 70\n{headers}\
             Content-Length: [len]\n\n{body}"
        ));
        self
    }

    /// The ACK of its answered INVITE.
    pub fn acknowledge(self) -> Self {
        self.acknowledge_with("", "")
    }

    fn acknowledge_with(mut self, headers: &str, body: &str) -> Self {
        let (line, dialog) = self.dialog();
        let sequence = self.sequence;
        self.send(&format!(
            "ACK {line} SIP/2.0\n{dialog}CSeq: {sequence} ACK\nMax-Forwards: 70\n{headers}Content-Length: [len]\n\n{body}"
        ));
        self
    }

    /// Where requests in the call go, and their headers that say which call.
    fn dialog(&self) -> (&'static str, String) {
        if self.caller {
            ("[next_url]", format!("{CALLER_IN_CALL}[routes]\n"))
        } else {
            ("[$contact]", CALLEE_IN_CALL.to_owned())
        }
    }

    /// A REFER comes and is accepted; then it tells these outcomes, such as `100 Trying`, one after the other.
    pub fn transfers(mut self, outcomes: &[&str]) -> Self {
        self = self.receive("REFER").reply("202 Accepted");
        for outcome in outcomes {
            let state = if outcome.starts_with('1') {
                "active;expires=60"
            } else {
                "terminated;reason=noresource"
            };
            let headers = format!(
                "Event: refer\nSubscription-State: {state}\nContent-Type: message/sipfrag;version=2.0\n"
            );
            self = self
                .request_with("NOTIFY", &headers, &format!("SIP/2.0 {outcome}\n"))
                .response(200);
        }
        self
    }

    /// The other side ends the call.
    pub fn ended(self) -> Self {
        self.receive("BYE").reply("200 OK")
    }

    /// It ends the call.
    pub fn ends(self) -> Self {
        self.request("BYE").response(200)
    }

    fn optional(&mut self, statuses: &[&str]) {
        for status in statuses {
            self.step(&format!("<recv response=\"{status}\" optional=\"true\"/>"));
        }
    }

    fn send(&mut self, message: &str) {
        // Sent again until it is acknowledged: requests, and the answer to an INVITE.
        let reply = message.starts_with("SIP/2.0");
        let acknowledged = if reply {
            message.starts_with("SIP/2.0 200") && message.contains("m=")
        } else {
            !message.starts_with("ACK")
        };
        let again = if acknowledged { " retrans=\"500\"" } else { "" };
        self.step(&format!("<send{again}><![CDATA[\n{message}\n]]></send>"));
    }

    fn step(&mut self, step: &str) {
        writeln!(self.steps, "{step}").unwrap();
    }

    fn xml(&self) -> String {
        // SIPp refuses variables that are set and never used.
        let mut used = Vec::new();
        if !self.caller {
            used.push("from,to,sequence,contact,via");
        }
        if self.steps.contains("verifyauth") {
            used.push("right");
        }

        let used = used.join(",");
        let used = if used.is_empty() {
            used
        } else {
            format!("<Reference variables=\"{used}\"/>\n")
        };
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE scenario SYSTEM \"sipp.dtd\">\n\
             <scenario name=\"telephone\">\n{}<label id=\"end\"/>\n{used}</scenario>\n",
            self.steps
        )
    }
}

const REPLY: &str = "\
[last_Via:]
[last_Record-Route:]
[last_From:]
[last_To:]TAG
[last_Call-ID:]
[last_CSeq:]
Contact: <sip:[local_ip]:[local_port];transport=[transport]>
";
const CALLER: &str = "\
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: \"Caller\" <sip:+14155550100@[local_ip]:[local_port]>;tag=[pid]calls[call_number]
To: <sip:[service]@[remote_ip]:[remote_port]>
Call-ID: [call_id]";
const CALLER_IN_CALL: &str = "\
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: \"Caller\" <sip:+14155550100@[local_ip]:[local_port]>;tag=[pid]calls[call_number]
To: <sip:[service]@[remote_ip]:[remote_port]>[peer_tag_param]
Call-ID: [call_id]
";
const CALLEE_IN_CALL: &str = "\
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From:[$to];tag=[pid]called[call_number]
To:[$from]
Call-ID: [call_id]
";

/// SIPp with its scenario. Dropping it ends it.
pub struct Sipp {
    program: Program,
    /// Where it listens.
    pub port: u16,
}

/// How SIPp is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// `u1` for UDP, `t1` for TCP.
    pub transport: &'a str,
    /// How many calls.
    pub calls: u32,
    /// How many of them begin in a second, for callers.
    pub rate: u32,
    /// Where it is.
    pub host: &'a str,
    /// Answers sound with sound.
    pub echo: bool,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Self {
            transport: "u1",
            calls: 1,
            rate: 50,
            host: "127.0.0.1",
            echo: true,
        }
    }
}

impl Sipp {
    /// A telephone that waits for one call over UDP.
    pub async fn start(scenario: Scenario) -> Self {
        Self::start_with(scenario, Run::default()).await
    }

    /// Telephones that wait for calls.
    pub async fn start_with(scenario: Scenario, run: Run<'_>) -> Self {
        let sipp = Self::run(&scenario, run, &[]);
        let table = if run.transport.starts_with('t') {
            "tcp"
        } else {
            "udp"
        };
        listened(table, sipp.port).await;
        sipp
    }

    /// A telephone that calls a user at an address, `host:port`.
    pub fn call(scenario: &Scenario, user: &str, address: &str) -> Self {
        Self::call_with(scenario, user, address, Run::default())
    }

    /// Telephones that call.
    pub fn call_with(scenario: &Scenario, user: &str, address: &str, run: Run<'_>) -> Self {
        Self::run(scenario, run, &["-s", user, address])
    }

    fn run(scenario: &Scenario, run: Run<'_>, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("scenario.xml"), scenario.xml()).unwrap();
        if let Some(hertz) = scenario.hertz {
            tone::mu_law(&folder.path().join(TONE), hertz, 60);
        }
        let port = ports(8);
        let program = Program::start("sipp", folder, |command| {
            command.args(["-sf", "scenario.xml", "-nostdin"]);
            command.args(["-i", run.host, "-mi", run.host]);
            command.args(["-t", run.transport]);
            for (name, value) in [("-p", port), ("-cp", port + 1), ("-mp", port + 4)] {
                command.args([name, &value.to_string()]);
            }
            command.args(["-m", &run.calls.to_string(), "-r", &run.rate.to_string()]);
            if run.echo && scenario.hertz.is_none() {
                command.arg("-rtp_echo");
            }
            command.args([
                "-trace_err",
                "-error_file",
                "errors",
                "-trace_msg",
                "-message_file",
                "messages",
            ]);
            command.args(["-timeout", "60s", "-timeout_error"]);
            command.args(arguments);
        });
        Self { program, port }
    }

    /// Where to call it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Waits until it has gone through its scenario as often as it should.
    pub async fn passed(&mut self) {
        let ended = self.program.ended().await;
        assert!(ended.success(), "SIPp's scenario failed: {ended}");
    }

    /// All messages that it has received and sent.
    pub fn messages(&self) -> String {
        self.program.text("messages")
    }
}
