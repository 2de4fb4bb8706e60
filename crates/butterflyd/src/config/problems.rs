//! Problems and notices of a configuration, collected.

/// Collects problems, so that all are reported at once, and notices of accepted settings.
#[derive(Default)]
pub(super) struct Problems {
    pub(super) found: Vec<String>,
    pub(super) notices: Vec<String>,
}

impl Problems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        self.found.push(problem.into());
    }

    pub(super) fn notice(&mut self, notice: impl Into<String>) {
        self.notices.push(notice.into());
    }

    /// Returns a good value; keeps a problem.
    pub(super) fn sort_out<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|problem| self.found.push(problem)).ok()
    }
}
