//! Every parser of the importer: the first byte says which, the rest is the file.

#![no_main]

use hotplug_sim::import::examine::examine;
use hotplug_sim::import::format::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else {
        return;
    };
    // Past the last format: found out from the text.
    let only = Format::ALL.get(usize::from(which) % (Format::ALL.len() + 1)).copied();
    if let Err(error) = examine(bytes, only) {
        panic!("{only:?}: {error}");
    }
});
