//! What the process tells of itself: logs, metrics, the report.

pub mod logging;
pub mod metrics;
pub mod report;
