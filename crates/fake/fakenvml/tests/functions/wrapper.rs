//! The library through `nvml-wrapper`, and through the node agent, which uses it.

use nvml_wrapper::enum_wrappers::device::{Clock, ComputeMode, TemperatureSensor, TopologyLevel};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use sublet_agent::discover::DeviceSource;
use sublet_agent::discover::nvml::NvmlSource;
use sublet_model::Health;

use super::test_machine;

fn open() -> Nvml {
    Nvml::builder()
        .lib_path(test_machine::library().as_os_str())
        .init()
        .unwrap()
}

#[expect(
    deprecated,
    reason = "the wrapper warns of boards with two cards, ours have one"
)]
fn by_serial<'a>(nvml: &'a Nvml, serial: &str) -> Result<Device<'a>, NvmlError> {
    nvml.device_by_serial(serial)
}

#[test]
fn the_cards_are_the_specs() {
    if !test_machine::inside(
        "wrapper::the_cards_are_the_specs",
        "2x80GiB,name=NVIDIA H100",
    ) {
        return;
    }
    let nvml = open();
    assert_eq!(nvml.device_count().unwrap(), 2);
    for (index, spec) in test_machine::machine().cards().iter().enumerate() {
        let card = nvml.device_by_index(index as u32).unwrap();
        assert_eq!(card.name().unwrap(), spec.name);
        assert_eq!(card.uuid().unwrap(), spec.uuid.to_string());
        assert_eq!(card.index().unwrap(), index as u32);
        assert_eq!(card.minor_number().unwrap(), index as u32);
        let memory = card.memory_info().unwrap();
        assert_eq!((memory.total, memory.used), (spec.memory, 0));
        assert_eq!(card.bar1_memory_info().unwrap().total, 128 << 30);
        let same = [
            nvml.device_by_uuid(spec.uuid.to_string()).unwrap(),
            by_serial(&nvml, &card.serial().unwrap()).unwrap(),
            nvml.device_by_pci_bus_id(card.pci_info().unwrap().bus_id)
                .unwrap(),
        ];
        for other in same {
            assert_eq!(other.index().unwrap(), index as u32);
        }
    }
}

#[test]
fn questions_about_a_card_are_answered() {
    if !test_machine::inside(
        "wrapper::questions_about_a_card_are_answered",
        "2x80GiB,name=NVIDIA H100",
    ) {
        return;
    }
    let nvml = open();
    assert!(nvml.sys_driver_version().unwrap().starts_with("580."));
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let own = nvml.sys_process_name(std::process::id(), 200).unwrap();
    assert_eq!(own, std::env::args().next().unwrap());
    let [mut card, other] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    assert_eq!(card.compute_mode().unwrap(), ComputeMode::Default);
    assert_eq!(card.temperature(TemperatureSensor::Gpu).unwrap(), 30);
    assert_eq!(card.power_usage().unwrap(), 70_000);
    assert_eq!(card.enforced_power_limit().unwrap(), 700_000);
    assert_eq!(card.max_clock_info(Clock::SM).unwrap(), 1980);
    assert_eq!(card.mig_mode().unwrap().current, 0);
    assert!(!card.is_accounting_enabled().unwrap());
    assert!(card.running_compute_processes().unwrap().is_empty());
    assert!(card.running_graphics_processes().unwrap().is_empty());
    let near = card.topology_common_ancestor(other).unwrap();
    assert!(matches!(near, TopologyLevel::Node), "{near:?}");
    assert_eq!(
        card.topology_nearest_gpus(TopologyLevel::Node)
            .unwrap()
            .len(),
        1
    );
    assert!(matches!(
        card.is_ecc_enabled(),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(
        card.link_wrapper_for(0).is_active(),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(
        card.set_compute_mode(ComputeMode::Prohibited),
        Err(NvmlError::NoPermission)
    ));
    assert!(matches!(
        card.process_utilization_stats(None),
        Err(NvmlError::NotFound)
    ));
    assert!(matches!(
        nvml.device_by_index(2),
        Err(NvmlError::InvalidArg)
    ));
    assert!(matches!(
        nvml.device_by_uuid("GPU-1"),
        Err(NvmlError::NotFound)
    ));
    assert!(matches!(by_serial(&nvml, "1"), Err(NvmlError::NotFound)));
    assert!(matches!(
        nvml.device_by_pci_bus_id("0000:3b:00.0"),
        Err(NvmlError::NotFound)
    ));
}

#[test]
fn the_agent_discovers_the_cards() {
    if !test_machine::inside(
        "wrapper::the_agent_discovers_the_cards",
        "3x24GiB,name=NVIDIA L4",
    ) {
        return;
    }
    let mut source = NvmlSource::open(&test_machine::library()).unwrap();
    let inventory = source.read().unwrap();
    let machine = test_machine::machine();
    assert_eq!(inventory.gpus().len(), 3);
    for (gpu, card) in inventory.gpus().iter().zip(machine.cards()) {
        assert_eq!(gpu.uuid.as_ref().unwrap().as_str(), card.uuid.to_string());
        assert_eq!(&*gpu.model, "NVIDIA L4");
        assert_eq!(gpu.memory.get(), 24 << 10);
        assert_eq!(gpu.health, Health::Healthy);
        let bus = u8::try_from(16 + 8 * card.index).unwrap();
        assert_eq!(gpu.bdf.map(|bdf| bdf.bus), Some(bus));
    }
    assert_eq!(inventory.pairs().len(), 3);
}
