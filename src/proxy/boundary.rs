//! Streams of pieces: where one ends and the next begins, whatever the reads and writes in between.

/// Follows the bytes of one direction.
pub trait Boundary {
    /// Follows the beginning of `bytes`, which is never empty: at most up to the next boundary. How long it was.
    fn step(&mut self, bytes: &[u8]) -> usize;

    /// Between two pieces.
    fn at_boundary(&self) -> bool;

    /// Follows `bytes`.
    fn advance(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = &rest[self.step(rest)..];
        }
    }

    /// Follows `bytes` up to the first boundary; how many bytes that takes, or `None` if it is not in them.
    fn advance_to_boundary(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            taken += self.step(&bytes[taken..]);
            if self.at_boundary() {
                return Some(taken);
            }
        }
        None
    }
}
