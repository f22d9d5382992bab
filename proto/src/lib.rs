//! The gRPC contract of hugepool, package `hugepool.v1`.
//!
//! Generated from `proto/hugepool/v1`; holds no logic. `v1::pages_server` and
//! `v1::admin_server` are what the daemon implements, `v1::pages_client` and
//! `v1::admin_client` what clients and tools call.
#![forbid(unsafe_code)]

/// Messages and services of `hugepool.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
pub mod v1 {
    tonic::include_proto!("hugepool.v1");
}

/// The encoded descriptor set of the contract, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hugepool.bin"));

/// Metadata key that carries a client's session token, 32 hexadecimal digits.
pub const SESSION_KEY: &str = "hugepool-session";

#[cfg(test)]
mod tests {
    use prost::Message as _;

    #[test]
    fn the_descriptor_set_holds_both_services() {
        let set = prost_types::FileDescriptorSet::decode(super::FILE_DESCRIPTOR_SET).unwrap();
        let names: Vec<_> = set
            .file
            .iter()
            .flat_map(|file| file.service.iter())
            .map(|service| service.name())
            .collect();
        assert_eq!(names, ["Pages", "Admin"]);
    }
}
