//! ELF files.
