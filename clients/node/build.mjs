// Compiles src/ twice: dist/esm for `import`, dist/cjs for `require`.
import { execFileSync } from 'node:child_process'
import { cpSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const here = dirname(fileURLToPath(import.meta.url))
const compiler = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc')

rmSync(join(here, 'dist'), { recursive: true, force: true })
compile(here, 'dist/esm')
// The nearest package.json decides the module format of a source file, so CommonJS has its own copy.
const copy = join(here, 'dist', '.cjs-source')
mkdirSync(copy, { recursive: true })
cpSync(join(here, 'src'), join(copy, 'src'), { recursive: true })
cpSync(join(here, 'tsconfig.json'), join(copy, 'tsconfig.json'))
writeFileSync(join(copy, 'package.json'), '{"type": "commonjs"}\n')
compile(copy, '../cjs', '--sourceMap', 'false')
rmSync(copy, { recursive: true })
writeFileSync(join(here, 'dist', 'cjs', 'package.json'), '{"type": "commonjs"}\n')

function compile(project, outDir, ...flags) {
  const command = [compiler, '-p', project, '--outDir', join(project, outDir), ...flags]
  execFileSync(process.execPath, command, { stdio: 'inherit' })
}
