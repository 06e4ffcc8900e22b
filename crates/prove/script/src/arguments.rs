//! Structs that scripts name, as the words that they consist of: `array:1024:1024:0:1:4:64`
//! becomes `struct:SIZE:WORD,WORD,…`, which the interpreter makes. Pure text.

/// All structs have room for the largest one, and for the bytes that a driver writes behind it.
const SIZE: usize = 128;

/// A line with its named structs written out.
pub(crate) fn expand(line: &str) -> String {
    let words = line.split(' ');
    let words: Vec<String> = words
        .map(|word| structure(word).unwrap_or_else(|| word.to_owned()))
        .collect();
    words.join(" ")
}

/// The struct that a word names.
fn structure(word: &str) -> Option<String> {
    let (name, fields) = word.split_once(':')?;
    let fields: Vec<u64> = fields
        .split(':')
        .map(number)
        .collect::<Option<Vec<u64>>>()?;
    let words = match (name, fields.as_slice()) {
        // Pinned memory of a place: what `cuMemCreate` and `cuMemPoolCreate` take.
        ("location", [kind, id]) => text(&[1, 0, *kind, *id]),
        // The same of managed memory.
        ("managed", [kind, id]) => text(&[2, 0, *kind, *id]),
        ("array", [width, height, depth, format, channels, flags]) => format!(
            "{},{},{},{}",
            text(&halves(*width)),
            text(&halves(*height)),
            text(&halves(*depth)),
            text(&[*format, *channels, *flags])
        ),
        ("flat", [width, height, format, channels]) => format!(
            "{},{},{}",
            text(&halves(*width)),
            text(&halves(*height)),
            text(&[*format, *channels])
        ),
        // A node that allocates so many bytes of a device, at an address if the program has one.
        ("node", [device, bytes]) => node(*device, *bytes, 0),
        ("node", [device, bytes, address]) => node(*device, *bytes, *address),
        // Memory of another driver.
        ("external", [bytes]) => {
            let [low, high] = halves(*bytes);
            text(&[0, 0, 0, 0, 0, 0, low, high])
        }
        // Tiles of the sparse array in `array`, mapped to the memory in `handle`.
        ("tiles", fields) => tiles(fields, 1)?,
        ("untiled", fields) => tiles(fields, 2)?,
        _ => return None,
    };
    Some(format!("struct:{SIZE}:{words}"))
}

fn node(device: u64, bytes: u64, address: u64) -> String {
    let mut words = [0; 30];
    words[2] = 1;
    words[3] = device;
    [words[26], words[27]] = halves(bytes);
    [words[28], words[29]] = halves(address);
    text(&words)
}

/// Level, first tile, number of tiles and layer; then the operation on them.
fn tiles(fields: &[u64], operation: u64) -> Option<String> {
    let &[level, first, count, layer] = fields else {
        return None;
    };
    let region = text(&[level, layer, first, 0, 0, count, 1, 1, operation, 0]);
    let handle = if operation == 1 { ",$handle" } else { "" };
    Some(format!("0,0,$array,0,0,{region}{handle}"))
}

/// A number as C programs write it, `60M` too.
fn number(text: &str) -> Option<u64> {
    let unit = |name| match name {
        'K' => Some(1 << 10),
        'M' => Some(1 << 20),
        'G' => Some(1_u64 << 30),
        _ => None,
    };
    match text.chars().last().and_then(unit) {
        Some(unit) => text[..text.len() - 1]
            .parse::<u64>()
            .ok()?
            .checked_mul(unit),
        None => text.parse().ok(),
    }
}

fn halves(value: u64) -> [u64; 2] {
    [value & 0xffff_ffff, value >> 32]
}

fn text(words: &[u64]) -> String {
    let words: Vec<String> = words.iter().map(u64::to_string).collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn structs_become_their_words() {
        for (line, expanded) in [
            ("cuMemAlloc_v2 &a 1M", "cuMemAlloc_v2 &a 1M"),
            (
                "cuMemCreate &h 1M location:1:3 0",
                "cuMemCreate &h 1M struct:128:1,0,1,3 0",
            ),
            ("f managed:2:0", "f struct:128:2,0,2,0"),
            (
                "f array:4294967297:2:0:1:4:64",
                "f struct:128:1,1,2,0,0,0,1,4,64",
            ),
            ("f flat:8:9:1:4", "f struct:128:8,0,9,0,1,4"),
            ("f external:5G", "f struct:128:0,0,0,0,0,0,1073741824,1"),
            (
                "f node:1:5:1G",
                "f struct:128:0,0,1,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,5,0,1073741824,0",
            ),
            (
                "f tiles:1:2:8:3",
                "f struct:128:0,0,$array,0,0,1,3,2,0,0,8,1,1,1,0,$handle",
            ),
            // Paths and forms of the interpreter's own are left alone.
            ("set x file:/a:b bytes:00", "set x file:/a:b bytes:00"),
            ("f array:1:2", "f array:1:2"),
        ] {
            assert_eq!(expand(line), expanded);
        }
    }
}
