//! What words tell about who has answered: phrases by language, as data. They are looked for in whatever the recogniser has
//! understood so far, with or without punctuation; all languages at once, because a phrase of one is none of another.

use vivavoce_core::call::Answerer;

/// Phrases of one language.
struct Phrases {
    /// BCP-47.
    language: &'static str,
    /// An assistant that asks who calls.
    screening: &'static [&'static str],
    /// An announcement that a number cannot be called.
    not_in_service: &'static [&'static str],
    /// An answering machine, a mailbox or a menu.
    machine: &'static [&'static str],
    /// Somebody who offers to listen, after more words than "hello".
    person: &'static [&'static str],
}

/// Phrases of machines that people say as well: they tell nothing once somebody has spoken like a person.
const AMBIGUOUS: &[&str] = &[
    "call you back",
    "does not exist",
    "for english",
    "i ll see if",
    "is disconnected",
    "is not available",
    "mailbox",
    "out of service",
    "please hold",
    "reason for calling",
    "return your call",
];

/// What words tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// Whose words they are.
    pub who: Answerer,
    /// Whether a person may say the same.
    pub is_ambiguous: bool,
}

/// In lower case, without punctuation; apostrophes are spaces.
const PHRASES: &[Phrases] = &[
    Phrases {
        language: "en",
        screening: &[
            "name and reason",
            "name and the reason",
            "reason for calling",
            "before i connect you",
            "your name and why you re calling",
            "your name and why you are calling",
            "if you record your name",
            "call screening",
            "call assist",
            "screening service",
            "screening your call",
            "screening calls",
            "using a screening",
            "this call is being screened",
            "let me know who s calling",
            "see if this person is available",
            "see if they are available",
            "i ll see if",
            "state your name",
            "say your name after the tone",
            "who is calling and why",
        ],
        not_in_service: &[
            "not in service",
            "no longer in service",
            "out of service",
            "has been disconnected",
            "is disconnected",
            "not been recognised",
            "not been recognized",
            "is not assigned",
            "does not exist",
            "cannot be completed as dialed",
            "cannot be completed as dialled",
            "could not be completed as dialed",
            "number you have dialed is not",
            "number you have dialled is not",
            "number you have called is not",
            "is not a working number",
            "check the number and",
            "dialed is incorrect",
        ],
        machine: &[
            "leave a message",
            "leave me a message",
            "leave us a message",
            "leave your message",
            "leave your name",
            "leave a voice message",
            "leave your number",
            "record your message",
            "after the tone",
            "after the beep",
            "at the tone",
            "at the beep",
            "sound of the tone",
            "sound of the beep",
            "voicemail",
            "voice mail",
            "mailbox",
            "mail box",
            "answering machine",
            "answering service",
            "is not available",
            "not available to take",
            "not available right now",
            "isn t available",
            "is unavailable",
            "are unavailable",
            "unable to take your call",
            "unable to come to the phone",
            "can t come to the phone",
            "cannot come to the phone",
            "can t take your call",
            "cannot take your call",
            "can t answer the phone",
            "not able to take your call",
            "unable to answer",
            "get back to you",
            "call you back",
            "return your call",
            "you ve reached",
            "you have reached",
            "you reached the",
            "please hold",
            "your call is important",
            "calls may be recorded",
            "call may be recorded",
            "call may be monitored",
            "for english",
            "press one",
            "press 1",
            "press two",
            "press 2",
            "press the pound",
            "when you are finished",
            "our office is closed",
            "office hours are",
            "opening hours",
            "forwarded to",
            "your call has been forwarded",
            "automated voice messaging",
            "automatic voice",
            "main menu",
            "listen carefully",
            "options have changed",
            "not here right now",
            "not home right now",
            "not in right now",
            "away from my desk",
            "away from the phone",
            "missed your call",
        ],
        person: &[
            "how can i help",
            "how may i help",
            "how can i assist",
            "how may i direct",
            "what can i do for you",
            "who is this",
            "who s this",
            "who s calling",
            "who is calling",
            "speaking",
            "can i help you",
        ],
    },
    Phrases {
        language: "de",
        screening: &[
            "ihren namen und den grund",
            "namen und grund ihres anrufs",
            "nennen sie ihren namen",
            "anruf wird geprüft",
            "anrufassistent",
        ],
        not_in_service: &[
            "kein anschluss unter dieser nummer",
            "nicht vergeben",
            "ist nicht geschaltet",
            "diese rufnummer ist",
            "rufnummer hat sich geändert",
        ],
        machine: &[
            "hinterlassen sie",
            "hinterlasse",
            "nachricht nach dem",
            "nach dem ton",
            "nach dem signalton",
            "nach dem piepton",
            "nach dem signal",
            "nach dem piep",
            "sprechen sie nach",
            "mailbox",
            "anrufbeantworter",
            "nicht erreichbar",
            "nicht zu erreichen",
            "nicht zu hause",
            "nicht persönlich",
            "nicht entgegennehmen",
            "nicht entgegen nehmen",
            "rufen zurück",
            "rufe zurück",
            "rufe sie zurück",
            "drücken sie die",
            "außerhalb unserer geschäftszeiten",
            "sie haben die nummer",
            "anschluss von",
        ],
        person: &[
            "was kann ich für sie tun",
            "wie kann ich ihnen helfen",
            "am apparat",
            "wer ist da",
            "wer spricht",
        ],
    },
    Phrases {
        language: "fr",
        screening: &[
            "votre nom et la raison",
            "votre nom et le motif",
            "dites votre nom",
            "filtrage d appel",
        ],
        not_in_service: &[
            "n est pas attribué",
            "n est plus attribué",
            "n est pas en service",
            "hors service",
            "n existe pas",
            "n est plus en service",
        ],
        machine: &[
            "laissez un message",
            "laisser un message",
            "laissez votre message",
            "laisser votre message",
            "laissez moi un message",
            "laissez nous un message",
            "après le signal",
            "après le bip",
            "après la tonalité",
            "bip sonore",
            "messagerie",
            "boîte vocale",
            "répondeur",
            "n est pas disponible",
            "ne suis pas disponible",
            "ne sommes pas disponibles",
            "ne peux pas répondre",
            "ne peut pas répondre",
            "suis absent",
            "vous rappellerai",
            "vous rappellerons",
            "appuyez sur",
            "tapez un",
        ],
        person: &[
            "que puis je faire pour vous",
            "puis je vous aider",
            "à l appareil",
            "qui est à l appareil",
            "je vous écoute",
        ],
    },
    Phrases {
        language: "es",
        screening: &[
            "su nombre y el motivo",
            "tu nombre y el motivo",
            "diga su nombre",
            "grabe su nombre",
        ],
        not_in_service: &[
            "no está en servicio",
            "fuera de servicio",
            "no existe",
            "no se encuentra en servicio",
            "no corresponde a ningún",
            "actualmente no existe",
        ],
        machine: &[
            "deje un mensaje",
            "deje su mensaje",
            "deja un mensaje",
            "deja tu mensaje",
            "dejar un mensaje",
            "déjame un mensaje",
            "déjeme un mensaje",
            "después del tono",
            "después de la señal",
            "después del bip",
            "al oír la señal",
            "buzón de voz",
            "buzón",
            "contestador",
            "no está disponible",
            "no se encuentra disponible",
            "no puedo atender",
            "no podemos atender",
            "no puede atender",
            "en este momento no",
            "oprima",
            "pulse",
            "marque",
        ],
        person: &[
            "en qué puedo ayudar",
            "en qué le puedo",
            "con quién hablo",
            "quién habla",
            "quién es",
        ],
    },
    Phrases {
        language: "it",
        screening: &["il suo nome e il motivo", "nome e il motivo della chiamata"],
        not_in_service: &[
            "non è attivo",
            "inesistente",
            "numero selezionato non",
            "non è in servizio",
            "fuori servizio",
        ],
        machine: &[
            "lasciate un messaggio",
            "lasci un messaggio",
            "lascia un messaggio",
            "lasciare un messaggio",
            "lasciare il vostro messaggio",
            "lasciate il vostro messaggio",
            "dopo il segnale",
            "dopo il bip",
            "segnale acustico",
            "segreteria telefonica",
            "segreteria",
            "casella vocale",
            "non è raggiungibile",
            "non raggiungibile",
            "non è disponibile",
            "non siamo in casa",
            "non posso rispondere",
            "richiamerò",
            "prema",
            "digiti",
        ],
        person: &["come posso aiutar", "chi parla", "con chi parlo", "chi è"],
    },
    Phrases {
        language: "pt",
        screening: &["seu nome e o motivo"],
        not_in_service: &[
            "não existe",
            "fora de serviço",
            "não está atribuído",
            "não se encontra atribuído",
        ],
        machine: &[
            "deixe um recado",
            "deixe seu recado",
            "deixe sua mensagem",
            "deixe a sua mensagem",
            "deixe uma mensagem",
            "após o sinal",
            "após o bipe",
            "caixa postal",
            "correio de voz",
            "não está disponível",
            "não pode atender",
            "não posso atender",
            "digite",
        ],
        person: &["em que posso ajudar", "como posso ajudar", "quem fala"],
    },
    Phrases {
        language: "nl",
        screening: &["uw naam en de reden"],
        not_in_service: &[
            "niet in gebruik",
            "niet aangesloten",
            "buiten gebruik",
            "nummer bestaat niet",
        ],
        machine: &[
            "laat een bericht",
            "bericht achterlaten",
            "bericht inspreken",
            "spreek een bericht",
            "spreek uw bericht",
            "na de toon",
            "na de piep",
            "na de pieptoon",
            "voicemail",
            "antwoordapparaat",
            "niet bereikbaar",
            "niet aanwezig",
            "toets een",
            "bel u terug",
            "bel je terug",
        ],
        person: &[
            "waarmee kan ik u helpen",
            "kan ik u helpen",
            "met wie spreek ik",
        ],
    },
    Phrases {
        language: "pl",
        screening: &["imię i powód"],
        not_in_service: &["nie istnieje", "nieaktywny", "jest nieprawidłowy"],
        machine: &[
            "zostaw wiadomość",
            "zostawić wiadomość",
            "proszę zostawić",
            "po sygnale",
            "poczta głosowa",
            "automatyczna sekretarka",
            "nie może odebrać",
            "nie mogę odebrać",
            "jest niedostępny",
            "naciśnij",
        ],
        person: &["w czym mogę pomóc", "kto mówi", "przy telefonie"],
    },
    Phrases {
        language: "ru",
        screening: &["ваше имя и причину", "назовите ваше имя"],
        not_in_service: &[
            "не существует",
            "не обслуживается",
            "неправильно набран",
            "набран неправильно",
            "набран неверно",
        ],
        machine: &[
            "оставьте сообщение",
            "оставьте ваше сообщение",
            "оставить сообщение",
            "после сигнала",
            "после гудка",
            "автоответчик",
            "голосовая почта",
            "голосовой почты",
            "недоступен",
            "не может ответить",
            "нажмите",
        ],
        person: &["чем могу помочь", "кто это", "кто говорит", "слушаю вас"],
    },
    Phrases {
        language: "ja",
        screening: &["お名前とご用件"],
        not_in_service: &["現在使われておりません"],
        machine: &[
            "留守番電話",
            "発信音の後",
            "発信音のあと",
            "メッセージをどうぞ",
        ],
        person: &[],
    },
    Phrases {
        language: "zh",
        screening: &[],
        not_in_service: &["是空号", "不存在"],
        machine: &["请留言", "提示音后", "无法接通", "暂时无法接听", "语音信箱"],
        person: &[],
    },
];

/// Languages that write no spaces between words.
const UNSPACED: [&str; 2] = ["ja", "zh"];

/// Who says this, where the words tell. What is sure comes before what is not.
pub fn meaning(text: &str) -> Option<Meaning> {
    type Of = fn(&Phrases) -> &'static [&'static str];
    const ORDER: [(Answerer, Of); 4] = [
        (Answerer::Screening, |phrases| phrases.screening),
        (Answerer::NotInService, |phrases| phrases.not_in_service),
        (Answerer::Machine, |phrases| phrases.machine),
        (Answerer::Person, |phrases| phrases.person),
    ];
    let text = normalised(text);
    ORDER.iter().find_map(|(who, of)| {
        let said = PHRASES.iter().flat_map(|phrases| {
            let spaced = !UNSPACED.contains(&phrases.language);
            of(phrases).iter().map(move |phrase| (*phrase, spaced))
        });
        let mut said = said
            .filter(|(phrase, spaced)| contains(&text, phrase, *spaced))
            .peekable();
        said.peek()?;
        Some(Meaning {
            who: *who,
            is_ambiguous: said.all(|(phrase, _)| AMBIGUOUS.contains(&phrase)),
        })
    })
}

/// Whether a phrase begins at the beginning of a word. Its last word may go on ("hinterlasse", "hinterlassen").
fn contains(text: &str, phrase: &str, spaced: bool) -> bool {
    let mut found = text.match_indices(phrase);
    found.any(|(at, _)| {
        let before = text.get(..at).unwrap_or_default();
        !spaced || before.is_empty() || before.ends_with(' ')
    })
}

/// In lower case, with single spaces in place of all that is no letter or digit.
pub fn normalised(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for sign in text.chars().flat_map(char::to_lowercase) {
        if sign.is_alphanumeric() {
            plain.push(sign);
        } else if !plain.is_empty() && !plain.ends_with(' ') {
            plain.push(' ');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_tell_who_has_answered() {
        for (text, who) in [
            ("Hi, you've reached Bob.", Some(Answerer::Machine)),
            (
                "please leave a message after the tone",
                Some(Answerer::Machine),
            ),
            (
                "If you record your name and reason for calling, I'll see if this person is available.",
                Some(Answerer::Screening),
            ),
            (
                "The number you have dialed is not in service.",
                Some(Answerer::NotInService),
            ),
            ("Good morning, how can I help you?", Some(Answerer::Person)),
            ("Hello?", None),
            ("", None),
            (
                "Bitte hinterlassen Sie eine Nachricht",
                Some(Answerer::Machine),
            ),
            (
                "Kein Anschluss unter dieser Nummer.",
                Some(Answerer::NotInService),
            ),
            ("Laissez un message après le bip.", Some(Answerer::Machine)),
            ("Deje su mensaje después del tono", Some(Answerer::Machine)),
            ("Оставьте сообщение после сигнала", Some(Answerer::Machine)),
            ("留守番電話サービスです", Some(Answerer::Machine)),
            // Part of a word is none.
            ("We call it impulsive", None),
        ] {
            assert_eq!(meaning(text).map(|meaning| meaning.who), who, "{text}");
        }
    }

    #[test]
    fn phrases_are_written_as_they_are_looked_for() {
        for phrases in PHRASES {
            let lists = [
                phrases.screening,
                phrases.not_in_service,
                phrases.machine,
                phrases.person,
            ];
            for phrase in lists.into_iter().flatten() {
                assert_eq!(normalised(phrase), *phrase, "{}", phrases.language);
            }
        }
    }
}
