//! A persistent array: a changed copy shares all but the chunk that changed.

use std::sync::Arc;

const CHUNK: usize = 64;

type Chunk<T> = Arc<[Option<Arc<T>>; CHUNK]>;

/// Optional values by index.
pub(crate) struct Slab<T>(Vec<Chunk<T>>);

impl<T> Clone for Slab<T> {
    fn clone(&self) -> Self {
        Slab(self.0.clone())
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab(Vec::new())
    }
}

impl<T> Slab<T> {
    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<&Arc<T>> {
        let index = index as usize;
        self.0.get(index / CHUNK)?.get(index % CHUNK)?.as_ref()
    }

    /// Puts a value at an index; grows as needed.
    pub fn set(&mut self, index: u32, value: Option<Arc<T>>) {
        let index = index as usize;
        while self.0.len() <= index / CHUNK {
            self.0.push(Arc::new(std::array::from_fn(|_| None)));
        }
        // Copies the chunk if another slab shares it.
        if let Some(slot) = self
            .0
            .get_mut(index / CHUNK)
            .and_then(|chunk| Arc::make_mut(chunk).get_mut(index % CHUNK))
        {
            *slot = value;
        }
    }

    /// Returns all values with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Arc<T>)> {
        self.0
            .iter()
            .flat_map(|chunk| chunk.iter())
            .enumerate()
            .filter_map(|(index, value)| Some((u32::try_from(index).ok()?, value.as_ref()?)))
    }

    /// Returns the lowest index without a value.
    pub fn vacant(&self) -> u32 {
        self.vacant_but(|_| false)
    }

    /// Returns the lowest index without a value that is not taken otherwise.
    pub fn vacant_but(&self, taken: impl Fn(u32) -> bool) -> u32 {
        let here = self.0.iter().flat_map(|chunk| chunk.iter());
        let vacant = here.map(Option::is_none).chain(std::iter::repeat(true));
        let mut all = (0..u32::MAX).zip(vacant);
        all.find(|(at, vacant)| *vacant && !taken(*at)).map_or(u32::MAX, |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_it_had() {
        let mut a = Slab::default();
        a.set(3, Some(Arc::new(1)));
        let b = a.clone();
        a.set(3, Some(Arc::new(2)));
        a.set(200, Some(Arc::new(3)));
        assert_eq!(b.get(3).map(|v| **v), Some(1));
        assert_eq!(b.get(200).map(|v| **v), None);
        assert_eq!(a.iter().map(|(i, v)| (i, **v)).collect::<Vec<_>>(), [(3, 2), (200, 3)]);
        assert_eq!((a.vacant(), Slab::<u8>::default().vacant()), (0, 0));
        assert_eq!((a.vacant_but(|at| at < 3), a.vacant_but(|at| at < 200)), (4, 201));
        assert_eq!(a.vacant_but(|at| at < 9999), 9999);
    }
}
