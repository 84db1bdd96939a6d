//! Owns outbound listeners: the app's own calls, whatever becomes of the pod until the app is gone.

mod hosts;

mod leaving;
