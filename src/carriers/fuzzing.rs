//! The fuzz target of this crate: the messages of every carrier.

use bytes::Bytes;

use super::{CARRIERS, Event};
use vivavoce_core::fuzzing::{Target, text};

/// The targets.
pub const TARGETS: [Target; 1] = [text("carrier_messages", messages, samples)];

/// A line is a message, to each carrier; one that is no text is binary.
pub fn messages(input: &[u8]) {
    for carrier in CARRIERS {
        let mut codec = carrier.codec("sample-rate=16000");
        for line in input.split(|byte| *byte == b'\n').take(64) {
            let event = match std::str::from_utf8(line) {
                Ok(text) => codec.text(text),
                Err(_) => codec.binary(Bytes::copy_from_slice(line)),
            };
            if let Ok(Some(Event::Start(start) | Event::Opened(_, start))) = event {
                let _packet = start.format.bytes(carrier.packet());
                codec.sound(Bytes::from_static(&[0; 320]));
                codec.mark("a");
                codec.clear();
            }
        }
        codec.hang_up();
    }
}

/// A call of each carrier.
fn samples() -> Vec<Vec<u8>> {
    [
        r##"{"event":"connected","protocol":"Call","version":"1.0.0"}
{"event":"start","sequenceNumber":"1","start":{"accountSid":"AC1","streamSid":"MZ1","callSid":"CA1","tracks":["inbound"],"mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000,"channels":1},"customParameters":{"from":"+4930","to":"+4940"}},"streamSid":"MZ1"}
{"event":"media","sequenceNumber":"3","media":{"track":"inbound","chunk":"1","timestamp":"5","payload":"f38="},"streamSid":"MZ1"}
{"event":"dtmf","streamSid":"MZ1","sequenceNumber":"5","dtmf":{"track":"inbound_track","digit":"#"}}
{"event":"mark","sequenceNumber":"4","streamSid":"MZ1","mark":{"name":"a"}}
{"event":"stop","sequenceNumber":"5","streamSid":"MZ1","stop":{"accountSid":"AC1","callSid":"CA1"}}"##,
        r#"{"event":"start","sequence_number":"1","start":{"call_control_id":"v2:T0","from":"+1312","to":"+1313","custom_parameters":{"a":"b"},"media_format":{"encoding":"PCMA","sample_rate":8000,"channels":1}},"stream_id":"32DE"}
{"event":"dtmf","stream_id":"32DE","sequence_number":"4","dtmf":{"digit":"1"}}"#,
        r#"{"event":"start","sequenceNumber":1,"start":{"callId":"12","streamId":"87","mediaFormat":{"encoding":"audio/x-l16","sampleRate":16000}},"extra_headers":"userId=12345;to=4930;from=4940"}
{"event":"playedStream","sequenceNumber":50,"streamId":"87","name":"a"}"#,
        r#"{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"u-1","from":"4940","to":"4930","prop1":"value1"}
{"event":"websocket:dtmf","digit":"5","duration":260}
{"event":"websocket:notify","payload":{"mark":"a"}}"#,
        r#"{"event":"start","sequence_number":"1","stream_sid":"MZ1","start":{"stream_sid":"MZ1","call_sid":"CA1","from":"+91987","to":"+91804","custom_parameters":{"key1":"value1"},"media_format":{"encoding":"audio/x-raw","sample_rate":"8000","bit_rate":"16"}}}"#,
        r#"{"version":"2","type":"open","seq":1,"serverseq":0,"id":"e160e428","position":"PT0S","parameters":{"conversationId":"090e","participant":{"ani":"tel:+1555","dnis":"+1800"},"media":[{"type":"audio","format":"PCMU","channels":["external","internal"],"rate":8000}],"inputVariables":{"a":"b"}}}
{"version":"2","type":"ping","seq":2,"serverseq":1,"id":"e160e428","position":"PT5S","parameters":{}}
{"version":"2","type":"dtmf","seq":3,"serverseq":2,"id":"e160e428","position":"PT6S","parameters":{"digit":"5"}}
{"version":"2","type":"close","seq":4,"serverseq":2,"id":"e160e428","position":"PT7S","parameters":{"reason":"end"}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_samples_are_understood() {
        samples().iter().for_each(|sample| messages(sample));
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_carrier_panic(input in prop::collection::vec(any::<u8>(), 0..2_000)) {
            messages(&input);
        }

        #[test]
        fn no_half_message_of_a_carrier_panics(which in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let samples = samples();
            let mut sample = samples[which.index(samples.len())].clone();
            let at = cut.index(sample.len());
            sample[at] = byte;
            messages(&sample);
            sample.truncate(at);
            messages(&sample);
        }
    }
}
