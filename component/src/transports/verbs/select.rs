//! Which port of which adapter is used, in the style of Open MPI's parameters.

use super::adapter::{Choice, Sizes};
use super::api::*;
use super::control::PortAddress;
use crate::transports::tcp::TcpConfig;

/// Entries of a table of GIDs that are looked at.
const GIDS_MAX: u32 = 64;

/// Are queue pairs to be used?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Usage {
    /// Where there is an adapter.
    #[default]
    Auto,
    /// If not, the job ends at its start; a restored process goes on without.
    Always,
    /// No.
    Never,
}

/// Parameters of the transport.
#[derive(Clone, Debug, Default)]
pub struct VerbsConfig {
    /// See there.
    pub usage: Usage,
    /// Adapters and ports to use, the first that works: "mlx5_0:1,mlx5_1". Empty: the nearest.
    pub if_include: String,
    /// Index of the GID; `None`: the first of RoCE v2, with an IPv4 address if there is one.
    pub gid_index: Option<u8>,
    /// Largest packet in bytes; 0: what the port has.
    pub mtu: u32,
    /// Sizes of queues and buffers.
    pub sizes: Sizes,
    /// The network beside the queue pairs.
    pub tcp: TcpConfig,
}

/// Whose text is a list of `adapter` or `adapter:port`.
fn included(list: &str) -> Result<Vec<(&str, Option<u8>)>, String> {
    let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| match entry.split_once(':') {
            None => Ok((entry, None)),
            Some((device, port)) => match port.parse() {
                Ok(port) if port > 0 => Ok((device, Some(port))),
                _ => Err(format!("{entry:?} is no adapter and port, such as \"mlx5_0:1\"")),
            },
        })
        .collect()
}

/// The code of a packet's size.
fn mtu_code(bytes: u32) -> Result<u8, String> {
    match bytes {
        0 => Ok(5),
        256 | 512 | 1024 | 2048 | 4096 => Ok((bytes.ilog2() - 7) as u8),
        _ => Err(format!("a packet of {bytes} bytes: 256, 512, 1024, 2048, 4096 or 0")),
    }
}

/// The port to use. `None`: none of those that may be used is active; the reason is for reports.
///
/// # Errors
/// A parameter makes no sense; the text is for the user.
pub fn choose<V: Verbs>(verbs: &V, config: &VerbsConfig) -> Result<Result<Choice, String>, String> {
    let mtu = mtu_code(config.mtu)?;
    included(&config.if_include)?;
    let mut why = "there is no adapter".to_owned();
    let chosen = candidates(verbs, config).map(|all| {
        all.iter().find_map(|(device, port)| {
            try_device(verbs, (device, *port), config.gid_index, mtu)
                .map_err(|error| why = error)
                .ok()
        })
    });
    Ok(match chosen {
        Ok(chosen) => chosen.ok_or(why),
        Err(error) => Err(error.to_string()),
    })
}

/// A second port for long payloads, another one that is active and on the same kind of link.
pub(super) fn second_choice<V: Verbs>(
    verbs: &V,
    config: &VerbsConfig,
    first: &Choice,
) -> Option<Choice> {
    let mtu = mtu_code(config.mtu).ok()?;
    if config.sizes.read_bytes_min == 0 || first.address.reads == 0 {
        return None;
    }
    // To open an adapter takes long. Where none is named, the first one was chosen as it would be.
    let is_any = config.if_include.is_empty();
    let is_first = |device: &str, port: Option<u8>| {
        device == first.device && port.map_or(is_any, |port| port == first.port)
    };
    let all = candidates(verbs, config).ok()?;
    let mut others = all.iter().filter(|(device, port)| !is_first(device, *port));
    others.find_map(|(device, port)| {
        let choice = try_device(verbs, (device, *port), config.gid_index, mtu).ok()?;
        let is_other = (&choice.device, choice.port) != (&first.device, first.port);
        let is_alike = choice.address.link_layer == first.address.link_layer;
        (is_other && is_alike && choice.address.reads > 0).then_some(choice)
    })
}

/// Adapters, and ports of them, in the order in which they are tried.
fn candidates<V: Verbs>(
    verbs: &V,
    config: &VerbsConfig,
) -> Result<Vec<(String, Option<u8>)>, VerbsError> {
    let include = included(&config.if_include).unwrap_or_default();
    if !include.is_empty() {
        return Ok(include.into_iter().map(|(device, port)| (device.to_owned(), port)).collect());
    }
    Ok(verbs.devices()?.into_iter().map(|device| (device, None)).collect())
}

fn try_device<V: Verbs>(
    verbs: &V,
    (name, port): (&str, Option<u8>),
    gid_index: Option<u8>,
    mtu: u8,
) -> Result<Choice, String> {
    let device = verbs.open(name).map_err(|error| error.to_string())?;
    let mut chosen = Err(format!("{name} has no port"));
    for number in port.map_or(1..=u8::MAX, |port| port..=port) {
        let port = match verbs.port(device, number) {
            Ok(port) => port,
            // No such port: behind the last one, or asked for.
            Err(error) if port.is_some() => {
                chosen = Err(format!("{name}: {error}"));
                break;
            }
            Err(_) => break,
        };
        if !port.is_active {
            chosen = Err(format!("port {number} of {name} is not active"));
            continue;
        }
        let Some((gid_index, entry)) = gid_of(verbs, device, number, &port, gid_index) else {
            chosen = Err(format!("port {number} of {name} has no GID of RoCE v2"));
            continue;
        };
        let (link_layer, lid, gid) = (port.link_layer, port.lid, entry.gid);
        let reads = verbs.reads_at_once(device);
        let address = PortAddress { link_layer, lid, gid, mtu: port.mtu.min(mtu), reads };
        chosen = Ok(Choice { device: name.to_owned(), port: number, gid_index, address });
        break;
    }
    verbs.close(device);
    chosen
}

/// The GID that peers address, and its index.
fn gid_of<V: Verbs>(
    verbs: &V,
    device: V::Device,
    number: u8,
    port: &Port,
    wanted: Option<u8>,
) -> Option<(u8, GidEntry)> {
    let entry = |index: u8| Some((index, verbs.gid(device, number, u32::from(index)).ok()?));
    if let Some(index) = wanted {
        return entry(index);
    }
    if port.link_layer == LinkLayer::InfiniBand {
        return entry(0);
    }
    let last = port.gids.min(GIDS_MAX) as u8;
    let mut roce = (0..last).filter_map(entry).filter(|(_, entry)| entry.is_roce_v2).peekable();
    let first = roce.peek().copied();
    roce.find(|(_, entry)| entry.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]).or(first)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Nature, World};
    use super::*;

    fn chosen(world: &World, config: &VerbsConfig) -> Result<Result<Choice, String>, String> {
        choose(&world.node(0), config)
    }

    #[test]
    fn an_active_port_is_chosen_and_nothing_stays_open() {
        let world = World::new(1, Nature::default());
        let choice = chosen(&world, &VerbsConfig::default()).unwrap().unwrap();
        assert_eq!((choice.device.as_str(), choice.port, choice.gid_index), ("fake0", 1, 0));
        assert_eq!((choice.address.lid, choice.address.mtu), (0x101, 5));
        world.set_port(0, false);
        let why = chosen(&world, &VerbsConfig::default()).unwrap().unwrap_err();
        assert_eq!(why, "port 1 of fake0 is not active");
        world.remove_device(0);
        let why = chosen(&world, &VerbsConfig::default()).unwrap().unwrap_err();
        assert_eq!(why, "there is no adapter");
        assert_eq!(world.live(0), 0);
    }

    #[test]
    fn parameters_are_obeyed_or_refused() {
        let world = World::new(1, Nature { is_ethernet: true, ..Nature::default() });
        let with = |if_include: &str, mtu| {
            let if_include = if_include.to_owned();
            chosen(&world, &VerbsConfig { if_include, mtu, ..VerbsConfig::default() })
        };
        let choice = with("other, fake0:1", 1024).unwrap().unwrap();
        assert_eq!((choice.address.link_layer, choice.address.mtu), (LinkLayer::Ethernet, 3));
        for (list, says) in [("other", "other"), ("fake0:2", "ibv_query_port on fake0 failed")] {
            let why = with(list, 0).unwrap().unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        assert!(with("fake0:x", 0).unwrap_err().contains("mlx5_0:1"));
        assert!(with("fake0:0", 0).is_err());
        assert!(with("", 1500).unwrap_err().contains("4096"));
        let wrong = VerbsConfig { gid_index: Some(9), ..VerbsConfig::default() };
        assert!(chosen(&world, &wrong).unwrap().is_err());
        assert_eq!(world.live(0), 0);
    }
}
