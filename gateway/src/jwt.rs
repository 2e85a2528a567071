//! Claims of JSON Web Tokens (RFC 7519) for tag rules and user keys. A token counts only when its signature and times
//! hold; what was verified is remembered until it expires.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName};
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use moka::sync::Cache;
use serin_core::request::Claims;

use crate::conf::{Jwt, JwtAlgorithm, JwtKey};

/// Verified tokens that are remembered, per service.
const CACHE: u64 = 10_000;

/// Verifies the tokens of one service.
pub struct Verifier {
    header: HeaderName,
    keys: Keys,
    validation: Validation,
    verified: Cache<Box<[u8]>, (Arc<Claims>, u64)>,
}

enum Keys {
    One(DecodingKey),
    ById(HashMap<String, DecodingKey>),
}

impl Verifier {
    /// Reads the keys.
    ///
    /// # Errors
    /// A sentence about a key file that cannot be read or an algorithm that does not go with it.
    pub fn new(conf: &Jwt) -> Result<Self, String> {
        let algorithms: Vec<Algorithm> = conf.algorithms.iter().copied().map(algorithm).collect();
        let first = *algorithms.first().ok_or("at least one algorithm is needed")?;
        let mut validation = Validation::new(first);
        validation.algorithms = algorithms;
        validation.validate_nbf = true;
        if let Some(issuer) = &conf.issuer {
            validation.set_issuer(&[issuer]);
        }
        match &conf.audience {
            Some(audience) => validation.set_audience(&[audience]),
            None => validation.validate_aud = false,
        }
        Ok(Self {
            header: conf.header.0.clone(),
            keys: Keys::read(conf, first)?,
            validation,
            verified: Cache::builder().max_capacity(CACHE).time_to_live(Duration::from_secs(3600)).build(),
        })
    }

    /// The claims of the request's token, if it has one that verifies.
    #[must_use]
    pub fn claims(&self, headers: &HeaderMap) -> Option<Arc<Claims>> {
        let value = headers.get(&self.header)?.to_str().ok()?;
        let token = value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")).unwrap_or(value).trim();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if let Some((claims, expires)) = self.verified.get(token.as_bytes()) {
            return (now < expires).then_some(claims);
        }
        let claims = self.verify(token)?;
        let expires = claims.get("exp")?.parse::<f64>().ok()? as u64;
        let claims = Arc::new(claims);
        self.verified.insert(token.as_bytes().into(), (Arc::clone(&claims), expires));
        Some(claims)
    }

    fn verify(&self, token: &str) -> Option<Claims> {
        let key = match &self.keys {
            Keys::One(key) => key,
            Keys::ById(keys) => match decode_header(token).ok()?.kid {
                Some(id) => keys.get(&id)?,
                None => keys.values().next().filter(|_| keys.len() == 1)?,
            },
        };
        let verified = decode::<serde_json::Map<String, serde_json::Value>>(token, key, &self.validation).ok()?;
        let text = |value: serde_json::Value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        Some(verified.claims.into_iter().map(|(name, value)| (name, text(value))).collect())
    }
}

impl Keys {
    fn read(conf: &Jwt, algorithm: Algorithm) -> Result<Self, String> {
        let read =
            |path: &Path| std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
        let bad =
            |path: &Path, error: &dyn std::fmt::Display| format!("{} holds no usable key: {error}", path.display());
        let path = match &conf.key {
            JwtKey::SecretFile(path) => {
                let key = DecodingKey::from_secret(read(path)?.trim_ascii());
                return key.map(Self::One).map_err(|error| bad(path, &error));
            }
            JwtKey::PublicKeyFile(path) => {
                let pem = read(path)?;
                let key = match algorithm {
                    Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem(&pem),
                    Algorithm::EdDSA => DecodingKey::from_ed_pem(&pem),
                    _ => DecodingKey::from_rsa_pem(&pem),
                };
                return key.map(Self::One).map_err(|error| bad(path, &error));
            }
            JwtKey::JwksFile(path) => path,
        };
        let set: JwkSet = serde_json::from_slice(&read(path)?).map_err(|error| bad(path, &error))?;
        let key = |jwk: &jsonwebtoken::jwk::Jwk| {
            let id = jwk.common.key_id.clone().unwrap_or_default();
            DecodingKey::from_jwk(jwk).map(|key| (id, key)).map_err(|error| bad(path, &error))
        };
        set.keys.iter().map(key).collect::<Result<_, _>>().map(Self::ById)
    }
}

fn algorithm(conf: JwtAlgorithm) -> Algorithm {
    match conf {
        JwtAlgorithm::Hs256 => Algorithm::HS256,
        JwtAlgorithm::Hs384 => Algorithm::HS384,
        JwtAlgorithm::Hs512 => Algorithm::HS512,
        JwtAlgorithm::Rs256 => Algorithm::RS256,
        JwtAlgorithm::Rs384 => Algorithm::RS384,
        JwtAlgorithm::Rs512 => Algorithm::RS512,
        JwtAlgorithm::Ps256 => Algorithm::PS256,
        JwtAlgorithm::Ps384 => Algorithm::PS384,
        JwtAlgorithm::Ps512 => Algorithm::PS512,
        JwtAlgorithm::Es256 => Algorithm::ES256,
        JwtAlgorithm::Es384 => Algorithm::ES384,
        JwtAlgorithm::EdDsa => Algorithm::EdDSA,
    }
}
