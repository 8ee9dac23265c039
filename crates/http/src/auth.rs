//! Authentication: one password, as on the Redis side.
//!
//! Credentials come as InfluxDB's clients send them: HTTP's basic scheme, the parameters `u` and `p`, or
//! `Token user:password`, which clients of version 2 send. A comparison takes the same time wherever the difference
//! is.

use crate::limits::Options;
use crate::parameters::Parameters;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, Method};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::net::IpAddr;

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The request has no credentials.
    Missing,
    /// The credentials are wrong.
    Wrong,
    /// No password is set, and the client is on another machine.
    Protected,
    /// No password is set, and a page of another site sends it through the browser of its reader.
    OtherSite,
}

impl Denied {
    /// The text of InfluxDB, except for the last one.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Missing => "unable to parse authentication credentials",
            Self::Wrong => "authorization failed",
            Self::Protected => {
                "there is no password, so clients of other machines are refused: set one, or serve with --no-protected-mode"
            }
            Self::OtherSite => {
                "there is no password, so a page of another site may change nothing: set one, or serve with --no-protected-mode"
            }
        }
    }
}

/// True if a client at this address is refused because no password is set.
pub(crate) fn is_protected_from(options: &Options, peer: IpAddr) -> bool {
    options.is_protected && options.password.is_none() && !peer.to_canonical().is_loopback()
}

/// True if a request that may change something is refused because no password is set and a page of another site sends
/// it: browsers send such forms without asking, and say so.
pub(crate) fn is_of_other_site(options: &Options, method: &Method, headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_cross = *method == Method::POST && site == Some(b"cross-site");
    options.is_protected && options.password.is_none() && is_cross
}

/// Checks the credentials of a request.
pub(crate) fn check(
    options: &Options,
    headers: &HeaderMap,
    parameters: &Parameters,
) -> Result<(), Denied> {
    let Some(password) = &options.password else { return Ok(()) };
    let (user, given) = credentials(headers, parameters).ok_or(Denied::Missing)?;
    let is_user = options.user.as_ref().is_none_or(|it| is_same(it.as_bytes(), user.as_bytes()));
    // Both are compared, whatever the result of the first comparison.
    if is_same(password.as_bytes(), given.as_bytes()) & is_user {
        Ok(())
    } else {
        Err(Denied::Wrong)
    }
}

fn credentials(headers: &HeaderMap, parameters: &Parameters) -> Option<(String, String)> {
    if let Some(user) = parameters.some("u") {
        return Some((user.to_owned(), parameters.get("p").to_owned()));
    }
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = header.trim().split_once(' ')?;
    let text = match scheme {
        _ if scheme.eq_ignore_ascii_case("basic") => {
            String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?
        }
        _ if scheme.eq_ignore_ascii_case("token") => rest.trim().to_owned(),
        _ => return None,
    };
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Compares in a time that does not depend on the place of the difference.
fn is_same(expected: &[u8], given: &[u8]) -> bool {
    let differences = expected
        .iter()
        .zip(given.iter().chain(std::iter::repeat(&0)))
        .fold(0, |differences, (expected, given)| differences | (expected ^ given));
    expected.len() == given.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(user: Option<&str>, header: Option<&str>, query: &str) -> Result<(), Denied> {
        let options = Options {
            user: user.map(str::to_owned),
            password: Some("secret".to_owned()),
            ..Options::default()
        };
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(header).unwrap());
        }
        check(&options, &headers, &Parameters::of(Some(query)))
    }

    #[test]
    fn credentials_come_in_three_ways() {
        // default:secret
        assert_eq!(checked(None, Some("Basic ZGVmYXVsdDpzZWNyZXQ="), ""), Ok(()));
        assert_eq!(checked(Some("default"), Some("basic ZGVmYXVsdDpzZWNyZXQ="), ""), Ok(()));
        assert_eq!(checked(None, None, "u=any&p=secret"), Ok(()));
        assert_eq!(checked(Some("me"), Some("Token me:secret"), ""), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        assert_eq!(checked(None, None, ""), Err(Denied::Missing));
        assert_eq!(checked(None, None, "p=secret"), Err(Denied::Missing));
        assert_eq!(checked(None, Some("Basic !!"), ""), Err(Denied::Missing));
        assert_eq!(checked(None, Some("Bearer x.y.z"), ""), Err(Denied::Missing));
        for wrong in ["u=a&p=secre", "u=a&p=secrets", "u=a&p=", "u=a&p=Secret", "u=a&p=secret%00"] {
            assert_eq!(checked(None, None, wrong), Err(Denied::Wrong), "{wrong}");
        }
        assert_eq!(checked(Some("me"), None, "u=you&p=secret"), Err(Denied::Wrong));
    }

    #[test]
    fn without_a_password_only_this_machine_is_served() {
        let mut options = Options::default();
        assert!(check(&options, &HeaderMap::new(), &Parameters::default()).is_ok());
        let [here, mapped, there] = ["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1"];
        let is_refused =
            |options: &Options, it: &str| is_protected_from(options, it.parse().unwrap());
        assert!(!is_refused(&options, here) && !is_refused(&options, mapped));
        assert!(is_refused(&options, there));
        options.is_protected = false;
        assert!(!is_refused(&options, there));
    }
}
