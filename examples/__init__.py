"""Programs that use Martlet as an application does."""
