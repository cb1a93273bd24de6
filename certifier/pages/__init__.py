"""What a self-contained page is made of: assembly, style, elements, numbers, charts."""
