"""What nobody looks at before something is missing: reports, and old sessions."""
