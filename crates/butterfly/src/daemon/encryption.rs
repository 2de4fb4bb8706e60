//! `--key`: what is encrypted, and the words for what comes back instead of a reply.

use crate::daemon::settings::Settings;
use crate::failure::Failure;
use butterfly_api::crypt::{Cipher, EncryptionError, KeyFile};
use butterfly_api::proto::{encrypted, error};
use protobuf::EnumOrUnknown;

/// Returns the cipher for requests that the settings want.
pub fn cipher(settings: &Settings) -> Result<Option<Cipher>, Failure> {
    match &settings.key {
        Some(path) => match KeyFile::read(path) {
            Ok(file) => Ok(Some(Cipher::new(file.key, settings.legacy_encryption))),
            Err(error) => {
                Err(Failure::said(format!("cannot load encryption key\n{error}\nnothing was sent")))
            }
        },
        None if settings.legacy_encryption => Err(Failure::said(
            "--legacy-encryption says how to encrypt, and there is no key; name one with -k PATH\nnothing was sent",
        )),
        None => Ok(None),
    }
}

/// The original's words where it has some, and what to do.
pub fn told(error: &EncryptionError) -> String {
    match error {
        EncryptionError::Error(code) => {
            let name = code.map_or("no code".into(), code_name);
            let help = code.and_then(|code| code.enum_value().ok()).map_or("", advice);
            format!("Encrypted message error: {name}{help}")
        }
        EncryptionError::Undecryptable => {
            "Error, cannot decrypt message\nhelp: the reply was not made with this key, or not to this \
                                           request: somebody between may have changed it"
                .into()
        }
        EncryptionError::NewEpoch => {
            "Error, the daemon was started anew, or its clock was set back, since it was asked first\nhelp: what was asked \
                                      may have been carried out: look, then ask again"
                .into()
        }
        EncryptionError::Nothing => "error: nothing recognized in encrypted response".into(),
        EncryptionError::Refused(help) => format!("Error, the daemon refused the request\nhelp: {help}"),
        EncryptionError::ClearReply(code) => format!(
            "Error, the reply is not encrypted, and was not read\nhelp: {}",
            match code {
                Some(error::Code::REJECTED) =>
                    "a daemon without a key answers so: start butterflyd with -k, or leave out -k here",
                _ => "anybody between may have written it: is the endpoint that of a butterflyd with a key?",
            }
        ),
        other => format!("Error, {other}"),
    }
}

/// The name of `code`.
pub fn code_name(code: EnumOrUnknown<encrypted::error::Code>) -> String {
    code.enum_value().map_or_else(|number| number.to_string(), |code| format!("{code:?}"))
}

fn advice(code: encrypted::error::Code) -> &'static str {
    use encrypted::error::Code;
    match code {
        Code::NOT_SUPPORTED => {
            "\nhelp: the daemon does not take this encryption: one of butterfly 0.13 wants --legacy-encryption, \
             one with --no-legacy-encryption does not want it; anybody between can write this answer: if the daemon is not 0.13, leave that option \
             out and look for who is between"
        }
        Code::REJECTED => "\nhelp: the daemon cannot read the request: is this its key?",
        Code::INTERNAL_ERROR => {
            "\nhelp: the daemon cannot encrypt its reply; what was asked may have been done"
        }
    }
}
