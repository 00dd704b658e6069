//! Scripts: which one a text is written in, and which one a language is written in. A voice that is given a script that it
//! does not know makes a noise or nothing; it is better to say so, and which voice would.

/// A script, or a few that are used together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    Latin,
    Greek,
    Cyrillic,
    Armenian,
    Hebrew,
    Arabic,
    Devanagari,
    Bengali,
    Gurmukhi,
    Gujarati,
    Tamil,
    Telugu,
    Kannada,
    Malayalam,
    Sinhala,
    Thai,
    Lao,
    Burmese,
    Georgian,
    Hangul,
    Ethiopic,
    Khmer,
    /// Chinese characters.
    Han,
    /// Japanese syllables.
    Kana,
}

impl Script {
    /// Primary subtags of the languages that most people write in it, where several do.
    pub const fn usual(self) -> &'static [&'static str] {
        match self {
            Self::Latin => &["en"],
            Self::Cyrillic => &["ru"],
            Self::Arabic => &["ar"],
            Self::Devanagari => &["hi"],
            Self::Bengali => &["bn"],
            Self::Han => &["zh", "cmn"],
            _ => &[],
        }
    }

    /// The script of a letter, where it is one of these.
    fn of(c: char) -> Option<Self> {
        Some(match c {
            'A'..='Z'
            | 'a'..='z'
            | 'À'..='\u{24f}'
            | '\u{1e00}'..='\u{1eff}'
            | '\u{ff21}'..='\u{ff5a}' => Self::Latin,
            '\u{370}'..='\u{3ff}' | '\u{1f00}'..='\u{1fff}' => Self::Greek,
            '\u{400}'..='\u{52f}' => Self::Cyrillic,
            '\u{530}'..='\u{58f}' => Self::Armenian,
            '\u{590}'..='\u{5ff}' => Self::Hebrew,
            '\u{600}'..='\u{6ff}' | '\u{750}'..='\u{77f}' | '\u{fb50}'..='\u{fdff}' => Self::Arabic,
            '\u{900}'..='\u{97f}' => Self::Devanagari,
            '\u{980}'..='\u{9ff}' => Self::Bengali,
            '\u{a00}'..='\u{a7f}' => Self::Gurmukhi,
            '\u{a80}'..='\u{aff}' => Self::Gujarati,
            '\u{b80}'..='\u{bff}' => Self::Tamil,
            '\u{c00}'..='\u{c7f}' => Self::Telugu,
            '\u{c80}'..='\u{cff}' => Self::Kannada,
            '\u{d00}'..='\u{d7f}' => Self::Malayalam,
            '\u{d80}'..='\u{dff}' => Self::Sinhala,
            '\u{e00}'..='\u{e7f}' => Self::Thai,
            '\u{e80}'..='\u{eff}' => Self::Lao,
            '\u{1000}'..='\u{109f}' => Self::Burmese,
            '\u{10a0}'..='\u{10ff}' => Self::Georgian,
            '\u{1100}'..='\u{11ff}' | '\u{3130}'..='\u{318f}' | '\u{ac00}'..='\u{d7af}' => {
                Self::Hangul
            }
            '\u{1200}'..='\u{137f}' => Self::Ethiopic,
            '\u{1780}'..='\u{17ff}' => Self::Khmer,
            '\u{3040}'..='\u{30ff}' => Self::Kana,
            '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}' => {
                Self::Han
            }
            _ => return None,
        })
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latin => "Latin letters",
            Self::Greek => "Greek letters",
            Self::Cyrillic => "Cyrillic letters",
            Self::Hebrew => "Hebrew letters",
            Self::Arabic => "Arabic letters",
            Self::Hangul => "Korean letters",
            Self::Han => "Chinese characters",
            Self::Kana => "Japanese characters",
            Self::Devanagari => "Devanagari letters",
            Self::Thai => "Thai letters",
            _ => "letters of another script",
        }
    }

    /// Whether a language (BCP-47) is written in it. Latin letters occur in all languages.
    pub fn is_of(self, language: &str) -> bool {
        let bare = language.split(['-', '_']).next().unwrap_or_default();
        let scripts: &[Self] = match bare {
            "ru" | "uk" | "bg" | "be" | "mk" | "kk" | "ky" | "mn" | "tt" | "ba" | "cv" => {
                &[Self::Cyrillic]
            }
            "sr" | "uz" | "az" | "bs" => &[Self::Cyrillic, Self::Latin],
            "el" | "grc" => &[Self::Greek],
            "hy" | "hyw" => &[Self::Armenian],
            "he" | "yi" => &[Self::Hebrew],
            "ar" | "fa" | "ur" | "ug" | "ps" | "sd" => &[Self::Arabic],
            "hi" | "mr" | "ne" | "kok" | "sa" => &[Self::Devanagari],
            "bn" | "as" | "bpy" => &[Self::Bengali],
            "pa" => &[Self::Gurmukhi],
            "gu" => &[Self::Gujarati],
            "ta" => &[Self::Tamil],
            "te" => &[Self::Telugu],
            "kn" => &[Self::Kannada],
            "ml" => &[Self::Malayalam],
            "si" => &[Self::Sinhala],
            "th" => &[Self::Thai],
            "lo" => &[Self::Lao],
            "my" => &[Self::Burmese],
            "ka" => &[Self::Georgian],
            "ko" => &[Self::Hangul],
            "am" | "ti" => &[Self::Ethiopic],
            "km" => &[Self::Khmer],
            "ja" => &[Self::Kana, Self::Han],
            "zh" | "cmn" | "yue" | "hak" | "nan" | "wuu" => &[Self::Han],
            _ => &[],
        };
        self == Self::Latin || scripts.contains(&self)
    }
}

/// The script that most letters of a text are in, if they are letters of one that is known. Digits count as Latin.
pub fn script_of(text: &str) -> Option<Script> {
    let mut counts: Vec<(Script, usize)> = Vec::new();
    for c in text.chars() {
        let script = if c.is_ascii_digit() {
            Some(Script::Latin)
        } else {
            Script::of(c).filter(|_| c.is_alphabetic())
        };
        if let Some(script) = script {
            match counts.iter_mut().find(|(known, _)| *known == script) {
                Some((_, count)) => *count += 1,
                None => counts.push((script, 1)),
            }
        }
    }
    let japanese = counts.iter().any(|(script, _)| *script == Script::Kana);
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    // Japanese has Chinese characters among its own.
    most.map(|(script, _)| match script {
        Script::Han if japanese => Script::Kana,
        script => script,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_in_the_script_of_most_of_its_letters() {
        for (text, script) in [
            ("Hello, Привет!", Some(Script::Cyrillic)),
            ("Say Привет to all of them.", Some(Script::Latin)),
            ("今天天气很好。", Some(Script::Han)),
            ("今日は良い天気", Some(Script::Kana)),
            ("안녕하세요", Some(Script::Hangul)),
            ("مرحبا", Some(Script::Arabic)),
            ("5 %", Some(Script::Latin)),
            ("…", None),
        ] {
            assert_eq!(script_of(text), script, "{text}");
        }
        assert!(Script::Cyrillic.is_of("uk") && !Script::Cyrillic.is_of("en-US"));
        assert!(Script::Kana.is_of("ja") && !Script::Kana.is_of("cmn"));
        assert!(Script::Latin.is_of("ru"));
    }
}
