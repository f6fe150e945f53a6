"""The broker's own rules over a real backend: resends, order, limits, named readers, and readers that are behind."""
