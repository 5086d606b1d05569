"""What every notebook of the course imports: one module, one idea."""
