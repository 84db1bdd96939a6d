use super::*;

fn frame(first: u8, masked: bool, length: usize) -> Vec<u8> {
    let mask = if masked { 0x80 } else { 0 };
    let mut bytes = vec![first];
    match length {
        0..126 => bytes.push(mask | length as u8),
        126..65536 => {
            bytes.push(mask | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(mask | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    if masked {
        bytes.extend([1, 2, 3, 4]);
    }
    bytes.extend(vec![0x88; length]);
    bytes
}

/// Every kind of head: fragments, reserved bits, control frames between fragments, all three encodings of the length.
fn frames(masked: bool) -> Vec<Vec<u8>> {
    [(0x01, 0), (0x89, 125), (0x40, 126), (0x00, 300), (0x8a, 0), (0x80, 65535), (0xc2, 65536), (0xf1, 1), (0x88, 2)]
        .map(|(first, length)| frame(first, masked, length))
        .to_vec()
}

#[test]
fn boundaries_are_found_wherever_the_stream_is_cut() {
    for masked in [false, true] {
        let all = frames(masked);
        let bytes = all.concat();
        let mut ends = vec![0];
        for frame in &all {
            ends.push(ends.last().unwrap() + frame.len());
        }
        let near = |end: &usize| (end.saturating_sub(16)..(end + 16).min(bytes.len())).collect::<Vec<_>>();
        for cut in ends.iter().flat_map(near) {
            let mut seen = Frames::default();
            seen.advance(&bytes[..cut]);
            assert_eq!(seen.at_boundary(), ends.contains(&cut), "after {cut} bytes");
            assert_eq!(seen.has_closed(), cut == bytes.len());
            if let Some(next) = ends.iter().find(|end| **end > cut) {
                assert_eq!(seen.advance_to_boundary(&bytes[cut..]), Some(next - cut), "from {cut}");
                seen.advance(&bytes[*next..]);
            }
            assert!(seen.at_boundary() && seen.has_closed() && !seen.is_lost());
        }
        let mut one_by_one = Frames::default();
        let mut found = vec![0];
        for (at, byte) in bytes.iter().enumerate() {
            one_by_one.advance(&[*byte]);
            if one_by_one.at_boundary() {
                found.push(at + 1);
            }
        }
        assert_eq!(found, ends);
    }
}

#[test]
fn an_impossible_head_ends_the_search_for_boundaries() {
    for opcode in [3, 7, 0xb, 0xf] {
        let mut seen = Frames::default();
        seen.advance(&[0x81, 1, b'x', 0x80 | opcode, 0]);
        assert!(seen.is_lost() && !seen.at_boundary() && !seen.has_closed(), "opcode {opcode}");
        assert_eq!(seen.advance_to_boundary(&frame(0x88, false, 0)), None);
    }
}

#[test]
fn our_close_is_one_short_frame_with_its_code() {
    let plain = close(1001, "gone", false);
    assert_eq!(plain, [&[0x88, 6, 0x03, 0xe9][..], b"gone"].concat());
    let masked = close(1012, "gone", true);
    let key = &masked[2..6];
    let payload: Vec<u8> = masked[6..].iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
    assert_eq!((&masked[..2], &payload[..]), (&[0x88, 0x86][..], &[&[0x03, 0xf4][..], b"gone"].concat()[..]));
    let mut seen = Frames::default();
    seen.advance(&masked);
    assert!(seen.has_closed() && seen.at_boundary());
}
