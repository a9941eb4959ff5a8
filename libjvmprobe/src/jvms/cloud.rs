//! Cloud that a host runs in, from data that exists on the host. No metadata service is called.
//!
//! Sources: the firmware's DMI tables, whose strings identify the cloud (cloud-init, tools/ds-identify); cloud-init's
//! record of the instance (cloud-init, "Instance metadata": /run/cloud-init/instance-data.json).

use serde_json::Value;

use crate::process::service::{Attributes, bounded};

/// cloud-init's record. This file contains no secrets, unlike instance-data-sensitive.json.
pub(super) const INSTANCE_DATA: &str = "/run/cloud-init/instance-data.json";
/// Maximum size of the record in bytes.
pub(super) const MAX_INSTANCE_DATA: u64 = 1 << 20;

/// A cloud: how DMI identifies it (field, value), its name in cloud-init, `cloud.provider` and `cloud.platform`.
struct Cloud {
    dmi: (&'static str, &'static str),
    name: &'static str,
    provider: &'static str,
    platform: &'static str,
}

const fn cloud(
    dmi: (&'static str, &'static str),
    [name, provider, platform]: [&'static str; 3],
) -> Cloud {
    Cloud { dmi, name, provider, platform }
}

const CLOUDS: [Cloud; 11] = [
    cloud(("sys_vendor", "Amazon EC2"), ["aws", "aws", "aws_ec2"]),
    cloud(("product_name", "Google Compute Engine"), ["gce", "gcp", "gcp_compute_engine"]),
    // Other hosts under Hyper-V have the same vendor, so the asset tag identifies Azure.
    cloud(
        ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
        ["azure", "azure", "azure.vm"],
    ),
    cloud(("product_name", "Alibaba Cloud ECS"), ["aliyun", "alibaba_cloud", "alibaba_cloud_ecs"]),
    cloud(
        ("chassis_asset_tag", "OracleCloud.com"),
        ["oracle", "oracle_cloud", "oracle_cloud_compute"],
    ),
    cloud(("sys_vendor", "Hetzner"), ["hetzner", "hetzner", "hetzner.cloud_server"]),
    cloud(("sys_vendor", "Scaleway"), ["scaleway", "scaleway_cloud", "scaleway_cloud_compute"]),
    cloud(("sys_vendor", "Tencent Cloud"), ["tencent", "tencent_cloud", "tencent_cloud_cvm"]),
    cloud(("sys_vendor", "Vultr"), ["vultr", "vultr", "vultr.cloud_compute"]),
    cloud(("sys_vendor", "Akamai"), ["akamai", "akamai_cloud", "akamai_cloud.compute"]),
    cloud(("sys_vendor", "Linode"), ["akamai", "akamai_cloud", "akamai_cloud.compute"]),
];

/// Returns the attributes of the cloud; none if the host is not known to run in one. `dmi` returns a field of the DMI
/// tables, and `instance_data` is the text of [`INSTANCE_DATA`].
pub(super) fn attributes(dmi: impl Fn(&str) -> String, instance_data: Option<&str>) -> Attributes {
    let record: Value =
        instance_data.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let value = |paths: &[&str]| {
        let values = paths.iter().filter_map(|path| record.pointer(path)?.as_str());
        // cloud-init writes `unknown` where a data source has no value.
        let mut known = values.filter(|text| !matches!(*text, "" | "unknown"));
        known.next().map(bounded).unwrap_or_default()
    };
    let name = value(&["/v1/cloud_name"]);
    let by_dmi = CLOUDS.iter().find(|cloud| dmi(cloud.dmi.0).trim() == cloud.dmi.1);
    let Some(cloud) = by_dmi.or_else(|| CLOUDS.iter().find(|cloud| cloud.name == name)) else {
        return Attributes::new();
    };
    let mut instance_id = value(&["/v1/instance_id"]);
    let mut instance_type = value(&[
        "/ds/meta_data/instance-type",
        "/ds/meta_data/instance_type",
        "/ds/meta_data/imds/compute/vmSize",
    ]);
    if cloud.provider == "aws" && by_dmi.is_some() {
        // Hosts on AWS Nitro have the type as the product name. Bare metal has other asset tags.
        let tag = bounded(&dmi("board_asset_tag"));
        instance_id = if tag.starts_with("i-") { tag } else { instance_id };
        let product = bounded(&dmi("product_name"));
        instance_type = if product.contains('.') { product } else { instance_type };
    }
    let account = value(&[
        "/ds/dynamic/instance-identity/document/accountId",
        "/ds/meta_data/imds/compute/subscriptionId",
    ]);
    let all = [
        ("cloud.account.id", account),
        ("cloud.availability_zone", value(&["/v1/availability_zone"])),
        ("cloud.platform", cloud.platform.into()),
        ("cloud.provider", cloud.provider.into()),
        ("cloud.region", value(&["/v1/region"])),
        ("host.id", instance_id),
        ("host.type", instance_type),
    ];
    let known = all.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the attributes as text, from pairs of DMI fields and values.
    fn of(dmi: &[(&str, &str)], instance_data: Option<&str>) -> String {
        let field = |name: &str| {
            let found = dmi.iter().find(|(field, _)| *field == name);
            found.map_or_else(String::new, |(_, value)| format!("{value}\n"))
        };
        let attributes = attributes(field, instance_data);
        let pairs = attributes.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn dmi_identifies_the_cloud() {
        let nitro = [
            ("sys_vendor", "Amazon EC2"),
            ("product_name", "m5.large"),
            ("board_asset_tag", "i-0123456789abcdef0"),
        ];
        assert_eq!(
            of(&nitro, None),
            "cloud.platform=aws_ec2 cloud.provider=aws host.id=i-0123456789abcdef0 host.type=m5.large"
        );
        let azure = [
            ("sys_vendor", "Microsoft Corporation"),
            ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
        ];
        assert_eq!(of(&azure, None), "cloud.platform=azure.vm cloud.provider=azure");
        assert_eq!(of(&azure[..1], None), "");
        assert_eq!(of(&[("sys_vendor", "QEMU")], None), "");
    }

    #[test]
    fn cloud_init_adds_region_zone_instance_and_account() {
        let record = r#"{"v1": {"cloud_name": "aws", "region": "eu-west-1",
            "availability_zone": "eu-west-1b", "instance_id": "i-0123"},
            "ds": {"meta_data": {"instance-type": "c7g.xlarge"},
            "dynamic": {"instance-identity": {"document": {"accountId": "123456789012"}}}}}"#;
        assert_eq!(
            of(&[], Some(record)),
            "cloud.account.id=123456789012 cloud.availability_zone=eu-west-1b \
             cloud.platform=aws_ec2 cloud.provider=aws cloud.region=eu-west-1 host.id=i-0123 \
             host.type=c7g.xlarge"
        );
        let unknown =
            r#"{"v1": {"cloud_name": "gce", "region": null, "availability_zone": "unknown"}}"#;
        assert_eq!(of(&[], Some(unknown)), "cloud.platform=gcp_compute_engine cloud.provider=gcp");
        for other in [r#"{"v1": {"cloud_name": "nocloud", "region": "x"}}"#, "{", "[]", "7", ""] {
            assert_eq!(of(&[], Some(other)), "", "{other}");
        }
    }
}
